// The element-wise kernels: a table of functions per instruction set. kernels.inl is compiled once per
// instruction set; reduce.cc picks a table at run time. Private to reduce/, the casts of codec/ and their
// tests.
//
// Pointers need no alignment. A destination may equal a source of the same element size; otherwise they
// must not overlap. All tables give the same bits, except that the sum or product of two NaNs may be either
// of them.
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "reduce/reduce.h"

namespace jaxccomp {

struct Kernels {
  using Combine = void (*)(void* dst, const void* a, const void* b, int64_t count);
  using Convert = void (*)(void* dst, const void* src, int64_t count);

  const char* name;
  // dst[i] = a[i] op b[i]. Null if CheckReducible rejects the combination, and for float16, which callers combine in
  // float (like bfloat16 with more than two sources).
  Combine combine[kDTypeCount][kReduceOpCount];
  void (*divide_float)(void* values, int64_t count, float divisor);
  void (*divide_double)(void* values, int64_t count, double divisor);
  // dst[i] = before[i] + (values[i] - decoded[i]) * scale. A term, or the sum, counts as 0 unless its
  // magnitude is at most `maximum`.
  void (*residual_float)(void* dst, const void* before, const void* values, const void* decoded,
                     int64_t count, float scale, float maximum);
  void (*residual_double)(void* dst, const void* before, const void* values, const void* decoded,
                      int64_t count, double scale, double maximum);
  Convert float16_to_float;
  Convert float_to_float16;
  Convert bfloat16_to_float;
  Convert float_to_bfloat16;
  Convert float16_to_double;
  Convert double_to_float16;
  Convert bfloat16_to_double;
  Convert double_to_bfloat16;
};

// The tables that this machine can run, the fastest first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

// Reduce() with the kernels of a given instruction set.
void ReduceWith(const Kernels& kernels, DType dtype, ReduceOp op, void* dst,
                std::span<const void* const> sources, int64_t count, int64_t divisor);

}  // namespace jaxccomp
