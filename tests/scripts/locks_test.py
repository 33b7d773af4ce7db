"""`make lint` finds an access without the lock that an annotation asks for."""

import pathlib
import re
import shutil
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).parents[2]

_COUNTER = """
#include "core/base/mutex.h"
namespace lockstep {
class Counter {
 public:
  void Add() {
    %s
    ++count_;
  }
  int Count() const {
    const ReaderLock lock(shared_);
    %s
    return total_;
  }
  void Report() {
    %s
    AddLocked();
  }
  void Wait() {
    const MutexLock lock(mutex_);
    while (count_ == 0) changed_.Wait(mutex_);
  }

 private:
  void AddLocked() LOCKSTEP_REQUIRES(mutex_) { ++count_; }

  Mutex mutex_;
  CondVar changed_;
  mutable SharedMutex shared_;
  int count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  mutable int total_ LOCKSTEP_GUARDED_BY(shared_) = 0;
};
}  // namespace lockstep
"""
_LOCK = "const MutexLock lock(mutex_);"


@pytest.mark.long  # make lint runs it
@pytest.mark.skipif(shutil.which("clang-tidy") is None, reason="make lint installs clang-tidy, which is not here")
def test_an_access_without_its_lock_is_an_error(tmp_path):
    cases = {
        "right.cc": (_COUNTER % (_LOCK, "", _LOCK), set()),
        "unguarded.cc": (
            _COUNTER % ("", "", _LOCK),
            {"writing variable 'count_' requires holding mutex 'mutex_' exclusively"},
        ),
        "shared.cc": (
            _COUNTER % (_LOCK, "++total_;", _LOCK),
            {"writing variable 'total_' requires holding mutex 'shared_' exclusively"},
        ),
        "called.cc": (
            _COUNTER % (_LOCK, "", ""),
            {"calling function 'AddLocked' requires holding mutex 'mutex_' exclusively"},
        ),
    }
    for name, (text, _) in cases.items():
        (tmp_path / name).write_text(text)
    command = ["clang-tidy", "--quiet", f"--config-file={_ROOT / '.clang-tidy'}"]
    files = [str(tmp_path / name) for name in cases]
    flags = ["--", "-std=c++20", f"-I{_ROOT}"]
    done = subprocess.run(command + files + flags, capture_output=True, text=True, timeout=500, check=False)
    found = re.findall(
        r"/(\w+\.cc):\d+:\d+: error: (.*) \[clang-diagnostic-thread-safety[a-z-]*,-warnings-as-errors\]", done.stdout
    )
    errors = {name: {text for file, text in found if file == name} for name in cases}
    assert errors == {name: wanted for name, (_, wanted) in cases.items()}, f"{done.stdout}\n{done.stderr}"
    assert done.returncode != 0
