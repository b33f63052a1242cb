// The fuzzer: libFuzzer drives this (make fuzz).
#include "decode_one.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jaxccomp::testing::DecodeOne(data, size);
  return 0;
}
