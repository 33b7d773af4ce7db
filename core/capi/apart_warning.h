#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

namespace lockstep {

// The warning of a process whose job has several workers that train apart. It has not begun to join the others, and
// already reads its share of the data, or makes a table. There is one warning in the life of a process.
//
// Datasets cannot warn by themselves, since only Python knows the place of the process in its job. Therefore Python
// leaves a text before (`SetText`), and the first element that a share gives shows it (`NoteRead`).
//
// Thread-safe, without locks: threads of tf.data call it for each element, and a process may fork meanwhile.
class ApartWarning {
 public:
  using Show = std::function<void(const std::string& text)>;

  // `show` is called once at most.
  explicit ApartWarning(Show show) : show_(std::move(show)) {}
  ~ApartWarning() { delete text_.load(); }
  ApartWarning(const ApartWarning&) = delete;
  ApartWarning& operator=(const ApartWarning&) = delete;

  // Sets the text that the next read shows, in place of an earlier one. Does nothing after `NoteJoining`, or after a
  // text was shown.
  void SetText(std::string text);

  // Called for each element that a worker's share of a dataset gives. Costs one load of an atomic without a text.
  void NoteRead() {
    if (text_.load(std::memory_order_relaxed) != nullptr) ShowText();
  }

  // Shows a text, unless `NoteJoining` was called or a text was shown before.
  void Warn(const std::string& text);

  // Called when the process begins to join the other workers. Nothing is shown from then on.
  void NoteJoining();

 private:
  void ShowText();

  const Show show_;
  std::atomic<bool> over_ = false;  // it joins, or a text was shown
  // Owned. Only the caller that exchanges it for null may use and delete it.
  std::atomic<const std::string*> text_ = nullptr;
};

// The warning of this process; it goes to stderr. Never destroyed, since threads may still read at exit.
ApartWarning& ProcessApartWarning();

}  // namespace lockstep

// Exported by the op library, like all functions of this folder (capi.h).
#pragma GCC visibility push(default)
extern "C" {

// ApartWarning::SetText and ApartWarning::Warn of this process. They cannot fail.
void lockstep_set_apart_text(const char* text);
void lockstep_warn_apart(const char* text);
}
#pragma GCC visibility pop
