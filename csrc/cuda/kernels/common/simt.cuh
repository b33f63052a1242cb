// The primitives of kernels: thread indices, exchanges within warps and blocks, and a few instructions. Under nvcc they
// are CUDA's; other compilers get the emulator, so that tests run the kernels' source without a GPU.
//
// All 32 lanes of a warp must take part in every exchange, all threads of a block in every Sync().
#pragma once

#include <cstdint>

#include "common/host_device.h"

#if defined(__CUDACC__)

#define JAXCCOMP_DEVICE __device__ __forceinline__
#define JAXCCOMP_CONSTEXPR __host__ __device__ constexpr
#define JAXCCOMP_NO_UNROLL _Pragma("unroll 1")

namespace jaxccomp::simt {

inline constexpr unsigned kAllLanes = 0xffffffffu;

JAXCCOMP_DEVICE unsigned Thread() { return threadIdx.x; }
JAXCCOMP_DEVICE unsigned Block() { return blockIdx.x; }
JAXCCOMP_DEVICE unsigned Blocks() { return gridDim.x; }
JAXCCOMP_DEVICE void Sync() { __syncthreads(); }
JAXCCOMP_DEVICE void SyncWarp() { __syncwarp(); }

JAXCCOMP_DEVICE uint32_t Ballot(bool set) { return __ballot_sync(kAllLanes, set); }
template <typename T>
JAXCCOMP_DEVICE T Shuffle(T value, unsigned lane) {
  return __shfl_sync(kAllLanes, value, static_cast<int>(lane));
}
// The value of the lane `delta` below; lanes below `delta` keep their own.
template <typename T>
JAXCCOMP_DEVICE T ShuffleUp(T value, unsigned delta) {
  return __shfl_up_sync(kAllLanes, value, delta);
}
// `value` plus the value of the lane `delta` below, if there is one.
JAXCCOMP_DEVICE uint32_t AddUp(uint32_t value, unsigned delta) {
  uint32_t sum;   // the shuffle's predicate saves a selection
  asm volatile(
      "{ .reg .u32 r; .reg .pred p;"
      " shfl.sync.up.b32 r|p, %1, %2, 0, 0xffffffff; @p add.u32 r, r, %1; mov.u32 %0, r; }"
      : "=r"(sum)
      : "r"(value), "r"(delta));
  return sum;
}
JAXCCOMP_DEVICE uint32_t WarpMax(uint32_t value) { return __reduce_max_sync(kAllLanes, value); }
JAXCCOMP_DEVICE uint32_t WarpSum(uint32_t value) { return __reduce_add_sync(kAllLanes, value); }

JAXCCOMP_DEVICE uint32_t AtomicAdd(uint32_t* at, uint32_t value) { return atomicAdd(at, value); }
JAXCCOMP_DEVICE uint32_t AtomicOr(uint32_t* at, uint32_t value) { return atomicOr(at, value); }
JAXCCOMP_DEVICE uint32_t AtomicMin(uint32_t* at, uint32_t value) { return atomicMin(at, value); }

JAXCCOMP_DEVICE uint64_t LoadAcquire(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
JAXCCOMP_DEVICE void StoreRelease(uint64_t* at, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}
JAXCCOMP_DEVICE void Pause() { __nanosleep(40); }

JAXCCOMP_DEVICE int Popcount(uint32_t x) { return __popc(x); }
JAXCCOMP_DEVICE int TrailingZeros(uint32_t x) { return __ffs(static_cast<int>(x)) - 1; }
// Nibble i of `selector`, below 8, selects byte i of the result from the eight bytes b:a. Only the low four nibbles
// matter. (__byte_perm would emit an instruction to clear bits that are 0 here.)
JAXCCOMP_DEVICE uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}
// The bits of `set` where `mask` has ones, and of `clear` where it has zeros. (With a constant `mask` the compiler
// would use two instructions.)
JAXCCOMP_DEVICE uint32_t Merge(uint32_t set, uint32_t clear, uint32_t mask) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(out) : "r"(set), "r"(clear), "r"(mask));
  return out;
}
// The low half of high:low >> shift, 0 <= shift < 32.
JAXCCOMP_DEVICE uint32_t FunnelRight(uint32_t low, uint32_t high, unsigned shift) {
  return __funnelshift_r(low, high, shift);
}

// Access as T at an aligned address, independent of the type in memory.
template <typename T>
JAXCCOMP_DEVICE T LoadAs(const void* at) {
  return *static_cast<const T*>(at);
}
template <typename T>
JAXCCOMP_DEVICE void StoreAs(void* at, T value) {
  *static_cast<T*>(at) = value;
}

struct alignas(16) Vector { uint32_t x[4]; };
JAXCCOMP_DEVICE Vector LoadVector(const void* at) {
  const uint4 v = *static_cast<const uint4*>(at);
  return {{v.x, v.y, v.z, v.w}};
}
JAXCCOMP_DEVICE void StoreVector(void* at, const Vector& v) {
  *static_cast<uint4*>(at) = make_uint4(v.x[0], v.x[1], v.x[2], v.x[3]);
}
JAXCCOMP_DEVICE void LoadPair(const void* at, uint32_t* pair) {
  const uint2 v = *static_cast<const uint2*>(at);
  pair[0] = v.x;
  pair[1] = v.y;
}
JAXCCOMP_DEVICE void StorePair(void* at, const uint32_t* pair) {
  *static_cast<uint2*>(at) = make_uint2(pair[0], pair[1]);
}

}  // namespace jaxccomp::simt

#else

#define JAXCCOMP_DEVICE inline
#define JAXCCOMP_CONSTEXPR constexpr
#define JAXCCOMP_NO_UNROLL
#include "cuda/emulator/simt_emulator.h"

#endif

namespace jaxccomp::simt {

JAXCCOMP_DEVICE unsigned Lane() { return Thread() & 31; }
JAXCCOMP_DEVICE unsigned Warp() { return Thread() >> 5; }

}  // namespace jaxccomp::simt
