// The codec "bf16": float32 and float64 travel as bfloat16, rounded once, to nearest even.
//
// NaN stays NaN and infinity stays infinity. What is nearer to 2^128 than to the largest bfloat16
// (3.39e38) becomes infinity: the top 0.2 % of float32's range, and most of float64's.
// Wire format: `count` little-endian bfloat16 values and nothing else.
#pragma once

#include "codec/codec.h"

namespace jaxccomp {

const Codec& Bf16Codec();

}  // namespace jaxccomp
