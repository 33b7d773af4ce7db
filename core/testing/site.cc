#include "core/testing/site.h"

#include <cstdio>
#include <cstdlib>

#include "core/base/strings.h"
#include "core/testing/ranks.h"

namespace lockstep::testing {
namespace {

constexpr char kVariable[] = "LOCKSTEP_TEST_SITE";

std::optional<Site> Read() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr) return std::nullopt;
  const std::string site = text;
  const size_t colon = site.rfind(':');
  const int port = colon == std::string::npos ? 0 : std::atoi(site.c_str() + colon + 1);
  if (site.size() < 3 || site[1] != '@' || port <= 0) {
    std::fprintf(stderr, "%s is '%s', wanted one like a@10.77.0.1:7000\n", kVariable, text);
    std::abort();
  }
  return Site{site[0], site.substr(2, colon - 2), port};
}

}  // namespace

const std::optional<Site>& Site::OfThisProcess() {
  static const std::optional<Site>* const site = new std::optional<Site>(Read());
  return *site;
}

std::string NextRendezvousAddress() {
  const std::optional<Site>& site = Site::OfThisProcess();
  if (!site) return FreeLocalAddress();
  static int jobs = 0;
  return StrCat(site->address, ":", site->port + jobs++);
}

}  // namespace lockstep::testing
