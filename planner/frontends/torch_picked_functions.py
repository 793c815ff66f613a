"""Which of PyTorch's functions are of single elements, of an axis, or of each row alone: these can be computed of all
rows in place of those that a mask picks (torch_picked.py)."""

ELEMENTS = frozenset({
    "abs", "absolute", "add", "addcdiv", "addcmul", "and", "asin", "acos", "atan", "atan2", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "bool", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "clip",
    "clone", "contiguous", "cos", "cosh", "deg2rad", "detach", "div", "divide", "double", "dropout", "elu", "eq", "erf",
    "exp", "expm1", "float", "floor", "floor_divide", "floordiv", "fmod", "full_like", "ge", "gelu", "greater",
    "greater_equal", "gt", "hardsigmoid", "hardswish", "hardtanh", "hypot", "int", "invert", "isclose", "isfinite",
    "isinf", "isnan", "le", "leaky_relu", "lerp", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logsigmoid", "long", "lt", "masked_fill",
    "maximum", "minimum", "mish", "mod", "mul", "multiply", "nan_to_num", "ne", "neg", "negative", "ones_like", "or",
    "pow", "radd", "rand", "rdiv", "reciprocal", "relu", "relu6", "remainder", "rfloordiv", "rmul",
    "ror", "round", "rpow", "rsqrt", "rsub", "rtruediv", "selu", "sgn", "sigmoid", "sign", "silu", "sin", "sinh",
    "softplus", "softsign", "sqrt", "square", "sub", "subtract", "tan", "tanh", "tanhshrink", "threshold", "to",
    "true_divide", "truediv", "trunc", "type_as", "where", "xlogy", "xor", "zeros_like",
})  # fmt: skip
"""Functions of single elements, also as operators: `__radd__`."""
IN_PLACE = frozenset({"iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior"})
ALONG = {
    "softmax": 1, "log_softmax": 1, "logsumexp": 1, "sum": 1, "mean": 1, "prod": 1, "amax": 1, "amin": 1, "max": 1,
    "min": 1, "argmax": 1, "argmin": 1, "all": 1, "any": 1, "cumsum": 1, "cumprod": 1, "norm": 2, "vector_norm": 2,
    "linalg_norm": 2, "linalg_vector_norm": 2, "normalize": 2, "cosine_similarity": 2, "gather": 1, "select": 1,
    "count_nonzero": 1, "var": 1, "std": 1, "sort": 1, "argsort": 1, "topk": 2, "median": 1, "flip": 1, "narrow": 1,
    "split": 2, "chunk": 2, "unbind": 1, "glu": 1, "index_select": 1, "diff": 2, "repeat_interleave": 2,
}  # fmt: skip
"""Functions of the axis that has this place among their arguments."""
USUAL_AXIS = {"normalize": 1, "cosine_similarity": 1, "sort": -1, "argsort": -1, "topk": -1, "split": 0, "chunk": 0,
               "unbind": 0, "glu": -1, "diff": -1}  # fmt: skip
"""The axis that these have if none is given; of the others it is all axes."""
MOVED = frozenset({"permute", "transpose", "swapaxes", "movedim", "unsqueeze", "squeeze", "expand", "one_hot",
                    "unflatten", "expand_as", "broadcast_to", "stack", "repeat"})  # fmt: skip
"""Axes that are turned, made or left out."""
PRODUCTS = frozenset({"matmul", "rmatmul", "mm", "mv", "bmm", "dot", "einsum", "linear", "bilinear", "cdist",
                       "pairwise_distance", "baddbmm", "addmm", "outer"})  # fmt: skip
"""Sums of products: those over the rows are of the picked ones."""
LAYERS = frozenset({
    "layer_norm", "rms_norm", "embedding", "group_norm", "conv1d", "conv2d", "max_pool1d", "max_pool2d", "avg_pool1d",
    "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "interpolate", "prelu", "pad",
    "scaled_dot_product_attention",
})  # fmt: skip
"""Of each row of a batch alone."""
ADDING = frozenset({"index_add", "index_copy", "scatter_add", "index_put"})
PLAIN = ("dtype", "device", "layout", "is_floating_point", "is_complex", "requires_grad", "is_cuda", "dim",
          "ndimension", "ndim", "is_sparse", "is_contiguous")  # fmt: skip
"""What is asked of rows and does not depend on how many there are."""
