// The GPUs of this process as the handlers and Python know them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/stage/stage.h"
#include "cuda/stream_codecs.h"

namespace jaxccomp {

struct CudaDevice {
  int64_t number;      // the engine's
  Stage* stage;
};

// Opens the process's GPUs, of which CUDA's ordinal and the engine's number are given. That makes contexts,
// takes memory and loads kernels, so it is done when the process joins, and never where XLA runs a program.
// Ok, or why the first that cannot be opened cannot.
Status OpenCudaDevices(const std::vector<std::pair<int, int64_t>>& numbers);
// The GPU of that ordinal, or why it could not be opened. Opens nothing.
Result<CudaDevice> FindCudaDevice(int ordinal);
// Those that could be opened.
std::vector<CudaDevice> FindCudaDevices();
// The codecs for streams of that GPU.
Result<const StreamCodecs*> FindCudaStreamCodecs(int ordinal);
// Whether the stage carries values of that dtype with that codec. An error without a GPU.
Result<bool> CudaRuns(std::string_view codec, DType dtype);
// Whether there are kernels that the traced plane may call for that codec and dtype (JAX's name).
Result<bool> CudaRunsOnStreams(std::string_view codec, std::string_view dtype);

}  // namespace jaxccomp
