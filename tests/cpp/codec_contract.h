// The contract of every codec. CheckCodecContract tests it with all dtypes of a codec, on ordinary and on difficult
// values, at all lengths around block and vector sizes.
#pragma once

#include <string_view>
#include <vector>

#include "codec/registry.h"

namespace jaxccomp::testing {

// All codecs that run on this host: with defaults, with each option at each choice or limit, and in pipelines of two.
std::vector<std::string> SpecsToTest();

// `spec` names a codec. check.h reports failures.
void CheckCodecContract(std::string_view spec);

}  // namespace jaxccomp::testing
