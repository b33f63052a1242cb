// The codecs "nvcomp.*" without a GPU: the kernels around nvCOMP in the emulator, and the tests' own nvCOMP
// (fake_nvcomp.h). All memory is the host's.
#pragma once

#include <memory>
#include <string_view>

#include "codec/codec.h"
#include "cuda/kernels/nvcomp/nvcomp.h"

namespace jaxccomp::testing {

// At once.
Status EncodeByFakeNvcomp(const cuda::NvcompEncodeCall& call);
Status DecodeByFakeNvcomp(const cuda::NvcompDecodeCall& call);
Result<int64_t> NvcompEncodeRoom(const nvcomp::Spec& spec, DType dtype, const void* values, int64_t count);
Result<int64_t> NvcompDecodeRoom(const nvcomp::Spec& spec, DType dtype, const void* values, int64_t count);

// The codec of such a spec, made to run on the host: what a GPU should give. The registry's needs a GPU.
std::shared_ptr<const Codec> HostNvcomp(std::string_view spec);

}  // namespace jaxccomp::testing
