// How fast a codec is on given values, beside memcpy of the same working set in the same rounds.
#pragma once

#include <cstdint>

#include "codec/codec.h"

namespace jaxccomp {

struct MeasurePlan {
  DType dtype = DType::kFloat32;
  const void* values = nullptr;
  const void* ref = nullptr;     // null: values are coded whole
  int64_t count = 0;
  int64_t chunk_values = 0;
  // Cached: each chunk by itself, again and again, as in a pipelined collective whose chunks were
  // just computed. Else one pass over all values after the other.
  bool cached = true;
  double seconds = 1;            // to spend, about
};

struct Measurement {
  int64_t value_bytes = 0;       // of what was coded
  int64_t encoded_bytes = 0;
  // Values per second in bytes: medians of the rounds of a chunk, then over all chunks.
  double encode_rate = 0;
  double decode_rate = 0;
  double merge_rate = 0;         // DecodeMerge, sum; 0 where the dtype has none
  double copy_rate = 0;          // memcpy
};

Result<Measurement> Measure(const Codec& codec, const MeasurePlan& plan);

}  // namespace jaxccomp
