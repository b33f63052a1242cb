// The limits of CUDA that a stream which waits for the host may deadlock at (docs/gpus.md, "Who waits"): with
// device_wait="host" none of them stops an operation. With "stream" those do that nothing prevents: should
// one of these not stop it any more, the fake has lost the limit, or the engine's way of holding streams has
// changed.
#include <chrono>
#include <string_view>
#include <tuple>

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

// A caller's stream that shares a hardware queue with one of the engine's, which then stand behind the wait:
// its trial finds that out, and the host waits instead.
TEST(cuda_device_limits_of_hardware_queues) {
  // The engine has four streams, and the caller's is the next one that is made.
  for (const auto& [queues, others, shared] :
       {std::tuple(1, 0, true), std::tuple(2, 0, true), std::tuple(4, 0, true),
        std::tuple(4, 1, true), std::tuple(8, 0, false), std::tuple(8, 4, true),
        std::tuple(8, 18, false), std::tuple(32, 18, false)}) {
    for (const char* wait : {"host", "stream"}) {
      LimitedTeam team({.launches = kRoom, .queues = queues}, {.wait = wait, .others = others});
      CHECK(team.Ends(kLongest) && team.HasValues());
      const int64_t each = std::string_view(wait) == "host" ? 0 : shared ? 1 : 2;
      CHECK_EQ(team.waits(), each * LimitedTeam::kRanks);
    }
  }
}

// Taking memory waits for the GPU, and so for the stream that waits for the engine: unless it was set aside.
TEST(cuda_device_limits_of_allocation) {
  const FakeContext::Limits limits = {.launches = kRoom, .queues = 32, .allocations_wait = true};
  CheckLimit(limits);
  LimitedTeam reserved(limits, {.wait = "stream", .reserved_bytes = 32 << 20});
  CHECK(reserved.Ends(kLongest) && reserved.HasValues());
  LimitedTeam too_little(limits, {.wait = "stream", .reserved_bytes = 1 << 10});
  CHECK(!too_little.Ends(kSeemsStopped));
}

// XLA loads a new kernel behind the call: that waits for the GPU, and keeps CUDA's lock from the engine.
TEST(cuda_device_limits_of_loading_kernels) {
  CheckLimit({.launches = kRoom, .queues = 32}, Behind::kNewKernel);
}

// XLA instantiates a CUDA graph while a kernel of NCCL waits for another rank: where that rank's stands
// behind a stream that waits for the engine, the engine cannot launch what ends it.
TEST(cuda_device_limits_of_graphs_beside_nccl) {
  CheckLimit({.launches = kRoom, .queues = 32}, Behind::kGraph);
}

}  // namespace
}  // namespace jaxccomp
