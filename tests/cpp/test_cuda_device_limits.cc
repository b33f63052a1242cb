// The limits of CUDA that a stream which waits for the host may deadlock at (docs/gpus.md, "Who waits"): with
// device_wait="host" none of them stops an operation. With "stream" each does: should one of these not stop
// it any more, the fake has lost the limit, or the engine's way of holding streams has changed.
#include <chrono>

#include "check.h"
#include "limited_team.h"

namespace jaxccomp {
namespace {

using namespace testing;
using Behind = LimitedTeam::Behind;
using std::chrono::milliseconds;

// A program takes some milliseconds where nothing stops it.
constexpr milliseconds kSeemsStopped(400), kLongest(30000);
constexpr int64_t kRoom = 10 * LimitedTeam::kKernelsBehind;

void CheckLimit(const FakeContext::Limits& limits, Behind behind = Behind::kKernels) {
  {
    LimitedTeam host(limits, {.wait = "host", .early = behind, .late = behind});
    CHECK(host.Ends(kLongest) && host.HasValues());
  }
  LimitedTeam stream(limits, {.wait = "stream", .early = behind, .late = behind});
  CHECK(!stream.Ends(kSeemsStopped));
}

// Without a limit in the way neither is stopped.
TEST(cuda_device_limits_that_are_wide_stop_nobody) {
  for (const char* wait : {"host", "stream"}) {
    LimitedTeam team({.launches = kRoom, .queues = 32}, {.wait = wait});
    CHECK(team.Ends(kLongest) && team.HasValues());
  }
}

// Kernels behind an early broadcast fill the launch queue, so that the engine cannot launch what ends it.
TEST(cuda_device_limits_of_the_launch_queue) { CheckLimit({.launches = 1000, .queues = 32}); }

// All streams share a hardware queue, as with CUDA_DEVICE_MAX_CONNECTIONS=1: the engine's stand behind the wait.
TEST(cuda_device_limits_of_hardware_queues) { CheckLimit({.launches = kRoom, .queues = 1}); }

// Taking pinned memory waits for the GPU, and so for the stream that waits for the engine.
TEST(cuda_device_limits_of_allocation) {
  CheckLimit({.launches = kRoom, .queues = 32, .allocations_wait = true});
}

// XLA loads a new kernel behind the call: that waits for the GPU, and keeps CUDA's lock from the engine.
TEST(cuda_device_limits_of_loading_kernels) {
  CheckLimit({.launches = kRoom, .queues = 32}, Behind::kNewKernel);
}

// XLA instantiates a CUDA graph while a kernel of NCCL waits for another rank: where that rank's stands behind a
// stream that waits for the engine, the engine cannot launch what ends it.
TEST(cuda_device_limits_of_graphs_beside_nccl) {
  CheckLimit({.launches = kRoom, .queues = 32}, Behind::kGraph);
}

}  // namespace
}  // namespace jaxccomp
