// Runs every registered test, or those whose name contains argv[1], or with "i/n" every n-th from the
// i-th on. JAXCCOMP_LIBZFP, JAXCCOMP_LIBNVCOMP and JAXCCOMP_LIBUCP are where these libraries lie, if not on the
// loader's path.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "check.h"
#include "common/dynamic_library.h"

int main(int argc, char** argv) {
  using namespace jaxccomp::testing;
  std::string_view filter = argc > 1 ? argv[1] : "";
  int part = 1, parts = 1;
  if (std::sscanf(filter.data(), "%d/%d", &part, &parts) == 2) {
    if (part < 1 || part > parts) {
      std::fprintf(stderr, "%s: the parts of %d are 1 to %d\n", argv[1], parts, parts);
      return 2;
    }
    filter = "";
  }
  if (const char* path = std::getenv("JAXCCOMP_LIBZFP")) jaxccomp::AddLibraryPath("zfp", path);
  if (const char* path = std::getenv("JAXCCOMP_LIBNVCOMP")) jaxccomp::AddLibraryPath("nvcomp", path);
  if (const char* path = std::getenv("JAXCCOMP_LIBUCP")) jaxccomp::AddLibraryPath("ucp", path);
  int passed = 0, failed = 0, number = 0;
  for (const TestCase& test : Tests()) {
    if (std::string_view(test.name).find(filter) == std::string_view::npos) continue;
    if (number++ % parts != part - 1) continue;
    const int64_t before = FailedChecks().load();
    const auto start = std::chrono::steady_clock::now();
    test.run();
    const bool ok = FailedChecks().load() == before;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "%s %s", ok ? "ok    " : "FAILED", test.name);
    std::fprintf(stderr, took.count() > 2 ? " (%.1f s)\n" : "\n", took.count());
    ++(ok ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
