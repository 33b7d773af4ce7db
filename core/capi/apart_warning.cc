#include "core/capi/apart_warning.h"

#include <cstdio>
#include <memory>
#include <utility>

namespace lockstep {

void ApartWarning::SetText(std::string text) {
  if (over_.load()) return;
  delete text_.exchange(new std::string(std::move(text)));
  if (over_.load()) delete text_.exchange(nullptr);  // it was joined meanwhile
}

void ApartWarning::ShowText() {
  const std::unique_ptr<const std::string> text(text_.exchange(nullptr));
  if (text != nullptr) Warn(*text);
}

void ApartWarning::Warn(const std::string& text) {
  if (!over_.exchange(true)) show_(text);
}

void ApartWarning::NoteJoining() {
  over_.store(true);
  delete text_.exchange(nullptr);
}

ApartWarning& ProcessApartWarning() {
  static ApartWarning* const warning =
      new ApartWarning([](const std::string& text) { std::fprintf(stderr, "lockstep: %s\n", text.c_str()); });
  return *warning;
}

}  // namespace lockstep

void lockstep_set_apart_text(const char* text) { lockstep::ProcessApartWarning().SetText(text); }

void lockstep_warn_apart(const char* text) { lockstep::ProcessApartWarning().Warn(text); }
