// The fuzzer's entry point for libFuzzer (make fuzz). JAXCCOMP_LIBZFP is the path of libzfp, if it is not on the
// loader's path.
#include <cstdlib>

#include "common/dynamic_library.h"
#include "decode_one.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* path = std::getenv("JAXCCOMP_LIBZFP")) jaxccomp::AddLibraryPath("zfp", path);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jaxccomp::testing::DecodeOne(data, size);
  return 0;
}
