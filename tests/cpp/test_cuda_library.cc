// How the engine finds the CUDA library, and its errors for a missing or different one.
#include <cstdlib>
#include <string>

#include "check.h"
#include "codec/registry.h"
#include "common/dynamic_library.h"
#include "cuda/host/no_gpus.h"
#include "cuda/library.h"

namespace jaxccomp {
namespace {

constexpr const char* kFake[] = {JAXCCOMP_FAKE_CUDA};
constexpr const char* kNowhere[] = {"libjaxccomp_that_is_not_there.so"};
constexpr const char* kForeign[] = {"libm.so.6"};

// Sets an environment variable of the fake library for one test.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* const name_;
};

bool Says(const Status& status, const char* text) {
  return status.message().find(text) != std::string::npos;
}

TEST(cuda_library_returns_its_gpus) {
  const CudaLibrary library(JAXCCOMP_VERSION, kFake);
  CHECK_OK(library.status());
  CHECK_EQ(library.version(), JAXCCOMP_VERSION);
  const Result<int> count = library.CountDevices();
  if (!CHECK_OK(count)) return;
  CHECK_EQ(*count, 2);
  const Result<Gpu*> first = library.FindGpu(0), again = library.FindGpu(0),
                        second = library.FindGpu(1);
  if (!CHECK_OK(first) || !CHECK_OK(again) || !CHECK_OK(second)) return;
  CHECK(*first == *again && *first != *second);
  CHECK_EQ((*first)->name(), "fake:0");
}

TEST(cuda_library_receives_the_engines_nvcomp_path) {
  AddLibraryPath("nvcomp", "/nowhere/libnvcomp.so.6");
  CHECK_OK(CudaLibrary(JAXCCOMP_VERSION, kFake).status());
  const char* const told = std::getenv("JAXCCOMP_FAKE_CUDA_TOLD");
  CHECK_EQ(std::string(told != nullptr ? told : ""), "nvcomp=/nowhere/libnvcomp.so.6");
}

TEST(cuda_library_returns_stream_codecs) {
  const CudaLibrary library(JAXCCOMP_VERSION, kFake);
  const auto int8 = LookupCodec("int8");
  if (!CHECK_OK(int8)) return;
  CHECK(library.stream_codecs()->Runs(**int8, DType::kFloat32));
  CHECK(library.RunsOnStreams(**int8, DType::kBFloat16));
  CHECK(!library.RunsOnStreams(**int8, DType::kFloat64));
  const CudaLibrary missing("1.2.3", kNowhere);
  CHECK(!missing.RunsOnStreams(**int8, DType::kFloat32));
}

TEST(cuda_library_missing_error_names_file_and_pip_command) {
  const CudaLibrary library("1.2.3", kNowhere);
  CHECK_EQ(library.status().code(), Code::kUnavailable);
  CHECK(Says(library.status(), "libjaxccomp_that_is_not_there.so"));
  CHECK(Says(library.status(), "pip install 'jaxccomp[cuda13]==1.2.3' (or cuda12)"));
  CHECK(!library.CountDevices().ok());
  CHECK(!library.FindGpu(0).ok());
}

TEST(cuda_library_of_another_version_is_refused) {
  const Setting version("JAXCCOMP_FAKE_CUDA_VERSION", "0.0.9");
  const CudaLibrary library(JAXCCOMP_VERSION, kFake);
  CHECK_EQ(library.status().code(), Code::kFailedPrecondition);
  CHECK(Says(library.status(), "of jaxccomp 0.0.9"));
  CHECK(Says(library.status(), "pip install"));
  CHECK_EQ(library.FindGpu(0).status().code(), Code::kFailedPrecondition);
}

TEST(cuda_library_without_the_expected_symbols_is_refused) {
  const CudaLibrary library(JAXCCOMP_VERSION, kForeign);
  CHECK_EQ(library.status().code(), Code::kUnavailable);
  CHECK(Says(library.status(), "does not offer jaxccomp_cuda_version"));
}

TEST(cuda_library_without_gpus_returns_the_drivers_error) {
  const Setting none("JAXCCOMP_FAKE_CUDA_DEVICES", "0");
  const CudaLibrary library(JAXCCOMP_VERSION, kFake);
  CHECK_OK(library.status());
  CHECK_EQ(library.CountDevices().status().code(), Code::kUnavailable);
  CHECK(Says(library.FindGpu(0).status(), "the fake driver is too old"));
}

TEST(cuda_library_error_recommends_a_driver_update_or_older_extra) {
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string older = cuda::WhyNoGpus("too old", 12080, 13000);
  CHECK(says(older, "the driver is of CUDA 12.8, this library of CUDA 13.0: update the driver"));
  CHECK(says(older, "pip install 'jaxccomp[cuda12]'"));
  CHECK(!says(cuda::WhyNoGpus("too old", 13000, 13010), "pip install"));
  CHECK(!says(cuda::WhyNoGpus("too old", 11080, 13000), "pip install"));
  CHECK(!says(cuda::WhyNoGpus("in use", 13010, 13000), "update"));
  CHECK(says(cuda::WhyNoGpus("said", 0, 13000), "no NVIDIA driver is installed (said)"));
  CHECK(says(cuda::WhyNoGpus("", 13000, 13000), "CUDA_VISIBLE_DEVICES"));
}

TEST(cuda_library_refuses_unknown_gpu_ordinals) {
  const CudaLibrary library(JAXCCOMP_VERSION, kFake);
  for (const int ordinal : {-1, 2}) {
    CHECK_EQ(library.FindGpu(ordinal).status().code(), Code::kInvalidArgument);
  }
  CHECK(Says(library.FindGpu(2).status(), "no GPU 2: CUDA finds 2"));
  const Setting revoked("JAXCCOMP_FAKE_CUDA_BROKEN", "1");
  CHECK(Says(library.FindGpu(0).status(), "the fake GPU is in use"));
}

}  // namespace
}  // namespace jaxccomp
