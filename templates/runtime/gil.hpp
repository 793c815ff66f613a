// Running without the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace stepplan {

/// While it lives, other Python threads run.
///
/// An interpreter that ends gives the GIL to no other thread any more. Until Python 3.13 it ends such a thread where that
/// asks for it, by unwinding its stack; bindings let nothing out, so that would end the whole process (SIGABRT). Here
/// the thread sleeps instead, as it does from Python 3.14 on, until the process is gone.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace stepplan
