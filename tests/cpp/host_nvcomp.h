// The codecs "nvcomp.*" without a GPU: the kernels around nvCOMP run in the emulator, with the nvCOMP of fake_nvcomp.h.
// All memory is host memory.
#pragma once

#include <memory>
#include <string_view>

#include "codec/codec.h"
#include "cuda/kernels/nvcomp/nvcomp.h"

namespace jaxccomp::testing {

// These calls are synchronous.
Status EncodeByFakeNvcomp(const cuda::NvcompEncodeCall& call);
Status DecodeByFakeNvcomp(const cuda::NvcompDecodeCall& call);
Result<int64_t> NvcompEncodeRoom(const nvcomp::Spec& spec, DType dtype, const void* values, int64_t count);
Result<int64_t> NvcompDecodeRoom(const nvcomp::Spec& spec, DType dtype, const void* values, int64_t count);

// The codec of `spec` on the host, as reference for a GPU. The registry's codec needs a GPU.
std::shared_ptr<const Codec> HostNvcomp(std::string_view spec);

}  // namespace jaxccomp::testing
