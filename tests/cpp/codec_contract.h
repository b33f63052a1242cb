// What every codec must do, whatever it is: CheckCodecContract tries it on all its dtypes, on
// ordinary values and on those that codecs fail on, at all lengths around block and vector sizes.
#pragma once

#include <string_view>
#include <vector>

#include "codec/registry.h"

namespace jaxccomp::testing {

// Every codec that can be used on the host here, with its defaults and with each option at each of its choices
// or limits; and pipelines of two.
std::vector<std::string> SpecsToTest();

// `spec` names a codec; failures are reported through check.h.
void CheckCodecContract(std::string_view spec);

}  // namespace jaxccomp::testing
