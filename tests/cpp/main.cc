// Runs all registered tests, or the ones whose name contains argv[1]. JAXCCOMP_TEST_SHARE=k/n runs every n-th test from
// the k-th on; JAXCCOMP_TEST_FAIL_FAST stops at the first failure. JAXCCOMP_LIBZFP, JAXCCOMP_LIBNVCOMP and
// JAXCCOMP_LIBUCP are paths of libraries that are not on the loader's path.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "check.h"
#include "common/dynamic_library.h"

int main(int argc, char** argv) {
  using namespace jaxccomp::testing;
  const std::string_view filter = argc > 1 ? argv[1] : "";
  int share = 1, shares = 1;
  if (const char* text = std::getenv("JAXCCOMP_TEST_SHARE"); text != nullptr && *text != '\0') {
    if (std::sscanf(text, "%d/%d", &share, &shares) != 2 || share < 1 || share > shares) {
      std::fprintf(stderr, "JAXCCOMP_TEST_SHARE must be k/n with k from 1 to n, not '%s'\n", text);
      return 2;
    }
  }
  if (const char* path = std::getenv("JAXCCOMP_LIBZFP")) jaxccomp::AddLibraryPath("zfp", path);
  if (const char* path = std::getenv("JAXCCOMP_LIBNVCOMP")) jaxccomp::AddLibraryPath("nvcomp", path);
  if (const char* path = std::getenv("JAXCCOMP_LIBUCP")) jaxccomp::AddLibraryPath("ucp", path);
  const bool fail_fast = std::getenv("JAXCCOMP_TEST_FAIL_FAST") != nullptr;
  int passed = 0, failed = 0, number = 0;
  for (const TestCase& test : Tests()) {
    if (std::string_view(test.name).find(filter) == std::string_view::npos) continue;
    if (number++ % shares != share - 1) continue;
    const int64_t before = FailedChecks().load();
    const auto start = std::chrono::steady_clock::now();
    test.run();
    const bool ok = FailedChecks().load() == before;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "%s %s", ok ? "ok    " : "FAILED", test.name);
    std::fprintf(stderr, took.count() > 2 ? " (%.1f s)\n" : "\n", took.count());
    ++(ok ? passed : failed);
    if (!ok && fail_fast) break;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
