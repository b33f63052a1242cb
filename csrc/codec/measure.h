// Measures a codec's rates on given values, and memcpy's on the same working set in the same rounds.
#pragma once

#include <cstdint>

#include "codec/codec.h"

namespace jaxccomp {

struct MeasurePlan {
  DType dtype = DType::kFloat32;
  const void* values = nullptr;
  const void* ref = nullptr;     // null: no reference
  int64_t count = 0;
  int64_t chunk_values = 0;
  // True: repeats each chunk by itself, as in a pipelined collective whose chunks were just computed.
  // False: repeats passes over all values.
  bool cached = true;
  double seconds = 1;            // approximate duration of the measurement
};

struct Measurement {
  int64_t value_bytes = 0;       // of the encoded values
  int64_t encoded_bytes = 0;
  // Bytes of values per second: medians of the rounds of a chunk, then over all chunks.
  double encode_rate = 0;
  double decode_rate = 0;
  double merge_rate = 0;         // DecodeMerge with a sum; 0: the dtype has none
  double copy_rate = 0;          // memcpy
};

Result<Measurement> Measure(const Codec& codec, const MeasurePlan& plan);

}  // namespace jaxccomp
