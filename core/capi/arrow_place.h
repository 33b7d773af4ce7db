#pragma once

// Exported by the op library, like all functions of this folder (capi.h).
#pragma GCC visibility push(default)
extern "C" {

// Says where the library for Arrow lies (columnar/files/arrow_library.h); it is loaded when a file is first asked for.
// Python calls this once, because only Python knows which pyarrow is installed.
//
// `library` is the file, or "" if there is none for the installed pyarrow; `missing` is then the text of the error.
// `needed` holds `count` files of pyarrow that are loaded before it. Never throws.
void lockstep_set_arrow(const char* library, const char* const* needed, int count, const char* missing);
}
#pragma GCC visibility pop
