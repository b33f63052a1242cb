// Checks and measures the CUDA kernels and the stage on a GPU. Bytes are compared with the CPU codecs', rates with
// the rate of a device-to-device copy in the same run. Prints a line of JSON for the device, one for each codec
// and dtype compared, and one for each measurement.
//
//   jaxccomp_gpu_tests [compare | measure | all] [PART]
//
// PART is "fixed_rate", "lossless", "stage", "nvcomp", or a substring of fixed-rate specs, such as "int8"; without
// it all parts except "nvcomp" run. "nvcomp" also measures "lossless".
// Exits with 0 if all is equal, 1 if not, and 77 without a device.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "check.h"
#include "device.h"
#include "fixed_rate.h"
#include "lossless.h"
#include "nvcomp.h"
#include "stage.h"

namespace jaxccomp {
namespace {

using namespace testing;

int Main(std::string_view what, std::string_view part) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr,
                 "jaxccomp_gpu_tests: there is no CUDA device to test on (%s); run it on a machine "
                 "that nvidia-smi shows a GPU on\n",
                 error != cudaSuccess ? cudaGetErrorString(error) : "0 devices");
    return 77;
  }
  cudaDeviceProp device;
  Cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("{\"device\": \"%s\", \"sms\": %d, \"l2_bytes\": %d}\n", device.name,
              device.multiProcessorCount, device.l2CacheSize);
  cudaStream_t stream;
  Cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const bool lossless = part.empty() || part == "lossless", stage = part.empty() || part == "stage";
  if (!lossless && !stage && part != "nvcomp" && !HasFixedRate(part)) {
    std::fprintf(stderr, "jaxccomp_gpu_tests: there is no part '%s'\n", std::string(part).c_str());
    return 1;
  }
  const bool nvcomp = part == "nvcomp" && FindNvcomp();
  bool equal = true;
  if (what != "measure") {
    equal &= CompareFixedRate(part, stream);
    if (lossless) equal &= CompareLossless(stream);
    if (stage) equal &= CompareStage(stream);
    if (nvcomp) equal &= CompareNvcomp(stream);
  }
  if (what != "compare") {
    MeasureFixedRate(part, stream);
    if (lossless) MeasureLossless(stream);
    if (stage) MeasureStage(stream);
    if (nvcomp) MeasureNvcomp(stream, MeasureLossless(stream));
  }
  return equal && FailedChecks() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace jaxccomp

int main(int argc, char** argv) {
  // Line-buffered, so that printed lines survive a crash.
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
  const std::string_view what = argc > 1 ? argv[1] : "";
  return jaxccomp::Main(what, argc > 2 ? argv[2] : "");
}
