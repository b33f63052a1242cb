// The codecs "nvcomp.*" without a GPU: the kernels around nvCOMP in the emulator, and the tests' own
// nvCOMP (fake_nvcomp.h).
#pragma once

#include <memory>
#include <string_view>

#include "codec/codec.h"
#include "cuda/kernels/nvcomp/nvcomp.h"

namespace jaxccomp::testing {

// Codes on the host, at once. What they are given is the host's memory.
Status EncodeByFakeNvcomp(const cuda::NvcompEncodeCall& call);
Status DecodeByFakeNvcomp(const cuda::NvcompDecodeCall& call);

// The codec of such a spec, or of a pipeline that ends with one, made to run on the host as well: what
// a device should give. The registry's needs a GPU, and does not run on the host.
std::shared_ptr<const Codec> HostNvcomp(std::string_view spec);

}  // namespace jaxccomp::testing
