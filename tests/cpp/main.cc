// Runs every registered test, or those whose name contains argv[1]. JAXCCOMP_LIBZFP and
// JAXCCOMP_LIBNVCOMP are where these libraries lie, if not on the loader's path.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "check.h"
#include "common/dynamic_library.h"

int main(int argc, char** argv) {
  using namespace jaxccomp::testing;
  const std::string_view filter = argc > 1 ? argv[1] : "";
  if (const char* path = std::getenv("JAXCCOMP_LIBZFP")) jaxccomp::AddLibraryPath("zfp", path);
  if (const char* path = std::getenv("JAXCCOMP_LIBNVCOMP")) jaxccomp::AddLibraryPath("nvcomp", path);
  int passed = 0, failed = 0;
  for (const TestCase& test : Tests()) {
    if (std::string_view(test.name).find(filter) == std::string_view::npos) continue;
    const int64_t before = FailedChecks().load();
    test.run();
    const bool ok = FailedChecks().load() == before;
    std::fprintf(stderr, "%s %s\n", ok ? "ok    " : "FAILED", test.name);
    ++(ok ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
