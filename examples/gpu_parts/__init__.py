"""The parts of gpu_study.py: each measures some rows of the acceptance of executors on GPUs."""
