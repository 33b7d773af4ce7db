#include "core/columnar/files/files.h"

namespace lockstep::columnar {

bool IsRemote(std::string_view name) {
  // A scheme's "://" comes before any other '/': "a/b://c" is an odd, but local name.
  const size_t scheme = name.find("://");
  return scheme != std::string_view::npos && name.find('/') > scheme && name.substr(0, scheme) != "file";
}

}  // namespace lockstep::columnar
