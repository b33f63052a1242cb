// What the kernels of a FakeCuda share.
#pragma once

#include <mutex>
#include <utility>

#include "cuda/host/api.h"
#include "fake_cuda.h"

namespace jaxccomp::testing {

// Puts f(reach) on the stream, where reach(pointer) is the pointer for the host's use.
template <typename F>
Status Put(CUstream_st* stream, F f) {
  FakeCuda& cuda = FakeCuda::Of(stream);
  return cuda.Start(stream, [&cuda, f = std::move(f)] {
    f([&cuda]<typename T>(T* at) -> T* {
      if (at == nullptr) return nullptr;
      return reinterpret_cast<T*>(cuda.memory().Reach(at));
    });
  });
}
inline int Error(const Status& status) { return status.ok() ? 0 : FakeCuda::kIllegalAddress; }

inline cuda::LosslessEncodeCall Reached(cuda::LosslessEncodeCall call, auto reach) {
  call.src = reach(call.src);
  call.ref = reach(call.ref);
  call.dst = reach(call.dst);
  call.size = reach(call.size);
  call.workspace = reach(call.workspace);
  return call;
}

inline cuda::LosslessDecodeCall Reached(cuda::LosslessDecodeCall call, auto reach) {
  call.payload = reach(call.payload);
  call.ref = reach(call.ref);
  call.dst = reach(call.dst);
  call.status = reach(call.status);
  call.workspace = reach(call.workspace);
  return call;
}

// There is one emulator.
inline std::mutex& EmulatorMutex() {
  static std::mutex mutex;
  return mutex;
}

// The CPU's codecs in place of kernels.
void UseCodecsOfSparse(cuda::KernelTable* table);
// Their own bodies in place of the CPU's codecs.
void UseBodiesOfFixedRate(cuda::KernelTable* table);
void UseBodiesOfSparse(cuda::KernelTable* table);
void UseBodiesOfLossless(cuda::KernelTable* table);
// fake_cuda_nvcomp.h
void UseFakeNvcomp(cuda::KernelTable* table);

}  // namespace jaxccomp::testing
