// What an MPI library says of memory of CUDA devices.
#include <string>

#include "check.h"
#include "transport/mpi/mpi_library.h"

namespace jaxccomp {
namespace {

int g_kind = -1, g_supported = 0, g_error = 0, g_cuda = 0, g_asked = 0;

int GpuQuery(int kind, int* supported) {
  g_kind = kind;
  *supported = g_supported;
  return g_error;
}
int CudaQuery() {
  ++g_asked;
  return g_cuda;
}

// Of a library that has those functions.
std::string Why(bool gpu_query, bool cuda_query) {
  g_kind = -1;
  g_asked = 0;
  return WhyNotCudaAware([&](const char* name) -> void* {
    if (gpu_query && std::string(name) == "MPIX_GPU_query_support") {
      return reinterpret_cast<void*>(&GpuQuery);
    }
    if (cuda_query && std::string(name) == "MPIX_Query_cuda_support") {
      return reinterpret_cast<void*>(&CudaQuery);
    }
    return nullptr;
  });
}

bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(cuda_aware_says_open_mpi) {
  g_cuda = 1;
  CHECK_EQ(Why(false, true), "");
  g_cuda = 0;
  CHECK(Has(Why(false, true), "not CUDA-aware, says MPIX_Query_cuda_support"));
}

TEST(cuda_aware_says_mpich) {
  g_error = 0;
  g_supported = 1;
  g_cuda = 0;
  CHECK_EQ(Why(true, false), "");
  CHECK_EQ(g_kind, 0);
  // The other one is not asked where this one answers.
  CHECK_EQ(Why(true, true), "");
  CHECK_EQ(g_asked, 0);
  g_supported = 0;
  g_cuda = 1;
  CHECK(Has(Why(true, true), "not CUDA-aware, says MPIX_GPU_query_support"));
  CHECK_EQ(g_asked, 0);
  // It does not know that kind of device.
  g_error = 1;
  CHECK_EQ(Why(true, true), "");
  CHECK_EQ(g_asked, 1);
  CHECK(Has(Why(true, false), "neither"));
}

TEST(cuda_aware_says_nobody) {
  const std::string why = Why(false, false);
  CHECK(Has(why, "MPIX_GPU_query_support") && Has(why, "MPIX_Query_cuda_support"));
}

}  // namespace
}  // namespace jaxccomp
