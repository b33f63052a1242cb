// The limits of CUDA that a stream which waits for the host may deadlock at (docs/gpus.md, "Who waits"): with
// device_wait="host" none of them stops an operation. With "stream" each does: should one of these not stop
// it any more, the fake has lost the limit, or the engine's way of holding streams has changed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "device_sums.h"
#include "device_team.h"
#include "fake_cuda.h"

namespace jaxccomp {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr int kRanks = 2;
constexpr int64_t kCount = 20000;
constexpr int kKernelsBehind = 3000;
// An operation takes some milliseconds where nothing stops it.
constexpr milliseconds kSeemsStopped(400), kLongest(30000);

// Rank 0 comes early, and puts kernels of its program behind the operation; rank 1, the root, comes late.
class Limited {
 public:
  Limited(const FakeContext::Limits& limits, const std::string& wait, milliseconds patience) {
    for (int rank = 0; rank < kRanks; ++rank) {
      contexts_.push_back(std::make_unique<FakeContext>(limits));
      devices_.push_back(std::make_shared<FakeCudaDevice>(static_cast<uint32_t>(rank) + 1, 3, 0,
                                                          CpuKernels(), contexts_.back().get()));
    }
    on_ = std::make_unique<DeviceTeam>(DeviceKind::kCuda, Style::kProcesses, kRanks,
                                       DeviceTeam::Place::kHost);
    for (int rank = 0; rank < kRanks; ++rank) {
      on_->devices[rank] = devices_[rank];
      on_->streams[rank] = std::make_unique<FakeStream>(contexts_[rank].get());
    }
    on_->team->SetOption("device_wait", wait);
    on_->team->SetOption("timeout_seconds", "60");
    OpSpec bcast = Allreduce(kCount, "lossless");
    bcast.collective = Collective::kBcast;
    bcast.algorithm = "chain";
    bcast.root = 1;
    program_.emplace(on_->team->Compile({bcast}));
    for (int rank = 0; rank < kRanks; ++rank) arrays_.push_back(Numbers(kCount, rank));
    for (int rank = 0; rank < kRanks; ++rank) {
      placed_.push_back(std::make_unique<OnDevice>(devices_[rank].get(), on_->streams[rank].get(),
                                                   &arrays_[rank]));
      placed_.back()->LeaveResults();   // where it is stopped, nobody knows when they are there
      callers_.emplace_back([this, rank] { Call(rank); });
    }
    const auto until = std::chrono::steady_clock::now() + patience;
    while (over_ < kRanks && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    stopped_ = over_ < kRanks;
  }
  ~Limited() {
    // What stands goes on, so that all can end.
    for (auto& context : contexts_) context->RemoveLimit();
    if (stopped_) {
      for (auto& device : devices_) device->Abandon();
    }
    for (std::thread& caller : callers_) caller.join();
    placed_.clear();
    for (int rank = 0; rank < kRanks; ++rank) on_->team->EngineOf(rank).Shutdown();
    program_.reset();
    on_.reset();
    devices_.clear();   // before their contexts
  }

  bool stopped() const { return stopped_; }
  // Whether both ranks have the root's values, once nothing was stopped.
  bool HasValues() const {
    const auto wanted = Numbers(kCount, 1).inputs[0].bytes;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::byte* const from =
          devices_[rank]->memory.Shadow(placed_[rank]->call.outputs[0].data);
      if (!std::equal(wanted.begin(), wanted.end(), from)) return false;
    }
    return true;
  }

 private:
  void Call(int rank) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(30));
    jaxccomp::Call call = placed_[rank]->call;
    call.device = on_->team->DeviceOf(rank);
    call.run_id = 1;
    Status status = on_->team->EngineOf(rank).RunOnDevice(program_->At(rank, 0), std::move(call));
    if (!stopped_) CHECK_OK(status);
    FakeStream& stream = *on_->streams[rank];
    for (int i = 0; i < kKernelsBehind; ++i) stream.Push([] {});
    stream.Push([this] { ++over_; });
  }

  std::vector<std::unique_ptr<FakeContext>> contexts_;
  std::vector<std::shared_ptr<FakeCudaDevice>> devices_;
  std::unique_ptr<DeviceTeam> on_;
  std::optional<Team::Program> program_;
  std::vector<RankArrays> arrays_;
  std::vector<std::unique_ptr<OnDevice>> placed_;
  std::vector<std::thread> callers_;
  std::atomic<int> over_{0};
  std::atomic<bool> stopped_{false};
};

void CheckLimit(const FakeContext::Limits& limits) {
  {
    const Limited host(limits, "host", kLongest);
    CHECK(!host.stopped() && host.HasValues());
  }
  const Limited stream(limits, "stream", kSeemsStopped);
  CHECK(stream.stopped());
}

// Without a limit in the way neither is stopped.
TEST(cuda_device_limits_that_are_wide_stop_nobody) {
  for (const char* wait : {"host", "stream"}) {
    const Limited team({.launches = 10 * kKernelsBehind, .queues = 32}, wait, kLongest);
    CHECK(!team.stopped() && team.HasValues());
  }
}

// Kernels behind an early broadcast fill the launch queue, so that the engine cannot launch what ends it.
TEST(cuda_device_limits_of_the_launch_queue) { CheckLimit({.launches = 1000, .queues = 32}); }

// All streams share a hardware queue, as with CUDA_DEVICE_MAX_CONNECTIONS=1: the engine's stand behind the wait.
TEST(cuda_device_limits_of_hardware_queues) {
  CheckLimit({.launches = 10 * kKernelsBehind, .queues = 1});
}

// Taking pinned memory waits for the GPU, and so for the stream that waits for the engine.
TEST(cuda_device_limits_of_allocation) {
  CheckLimit({.launches = 10 * kKernelsBehind, .queues = 32, .allocations_wait = true});
}

}  // namespace
}  // namespace jaxccomp
