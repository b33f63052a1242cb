// Two ranks whose GPUs have CUDA's limits (fake_context.h), and what their programs queue behind a broadcast.
// Rank 0 comes early; rank 1, the root, comes late.
#pragma once

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

namespace jaxccomp::testing {

class LimitedTeam {
 public:
  static constexpr int kRanks = 2;
  static constexpr int64_t kCount = 20000;
  static constexpr int kKernelsBehind = 3000;

  // What a program does when its call of the broadcast has returned.
  enum class Behind {
    kNothing,
    kKernels,    // many, in a queue
    kNewKernel,  // that CUDA loads, for which it waits for the GPU: a function that is jitted then
    kGraph       // a kernel of NCCL, which waits for that of the other rank; then the same for a CUDA graph
  };
  struct Program {
    std::string wait;   // the option device_wait
    Behind early = Behind::kKernels, late = Behind::kKernels;
    double timeouts[2] = {60, 60};   // of each rank, in seconds
    bool root_comes = true;
    int64_t reserved_bytes = 0;   // on each device, and as much pinned
    int others = 0;               // streams of XLA that are made before the program's
    bool busy = false;   // the stream of rank 0 does not come to the call before GoOn
  };

  LimitedTeam(const FakeContext::Limits& limits, Program program) : program_(std::move(program)) {
    for (int rank = 0; rank < kRanks; ++rank) {
      contexts.push_back(std::make_unique<FakeContext>(limits));
      devices_.push_back(std::make_shared<FakeCudaDevice>(static_cast<uint32_t>(rank) + 1, 3, 0,
                                                          CpuKernels(), contexts.back().get()));
    }
    on_ = std::make_unique<DeviceTeam>(DeviceKind::kCuda, Style::kProcesses, kRanks,
                                       DeviceTeam::Place::kHost);
    for (int rank = 0; rank < kRanks; ++rank) {
      on_->devices[rank] = devices_[rank];
      for (int i = 0; i < program_.others; ++i) FakeStream(contexts[rank].get());
      on_->streams[rank] = std::make_unique<FakeStream>(contexts[rank].get());
      if (program_.reserved_bytes > 0) CHECK_OK(devices_[rank]->device().Reserve(program_.reserved_bytes));
    }
    on_->team->SetOption("device_wait", program_.wait);
    OpSpec bcast = Allreduce(kCount, "lossless");
    bcast.collective = Collective::kBcast;
    bcast.algorithm = "chain";
    bcast.root = 1;
    compiled_.emplace(on_->team->Compile({bcast}));
    for (int rank = 0; rank < kRanks; ++rank) arrays_.push_back(Numbers(kCount, rank));
    for (int rank = 0; rank < kRanks; ++rank) {
      placed_.push_back(std::make_unique<OnDevice>(devices_[rank].get(), on_->streams[rank].get(),
                                                   &arrays_[rank]));
      const std::string timeout = std::to_string(program_.timeouts[rank]);
      CHECK_OK(on_->team->EngineOf(rank).SetOption("timeout_seconds", timeout));
      placed_.back()->LeaveResults();   // where it is stopped, nobody knows when they are there
    }
    if (program_.busy) {
      on_->streams[0]->Push([this] {
        while (!goes_on_ && !ended_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    }
    const int called = program_.root_comes ? kRanks : 1;
    for (int rank = 0; rank < called; ++rank) callers_.emplace_back([this, rank] { RunProgram(rank); });
  }
  ~LimitedTeam() {
    // What stands goes on, so that all can end.
    ended_ = true;
    for (auto& context : contexts) context->RemoveLimit();
    if (over < std::ssize(callers_)) {
      for (auto& device : devices_) device->Abandon();
    }
    for (std::thread& caller : callers_) caller.join();
    placed_.clear();
    for (int rank = 0; rank < kRanks; ++rank) on_->team->EngineOf(rank).Shutdown();
    compiled_.reset();
    on_.reset();
    devices_.clear();   // before their contexts
  }

  // Whether the programs are over before so much time has passed.
  bool Ends(std::chrono::milliseconds within) {
    const auto until = std::chrono::steady_clock::now() + within;
    while (over < std::ssize(callers_) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return over == std::ssize(callers_);
  }
  // Whether both ranks have the root's values, once they are over.
  bool HasValues() const {
    const auto wanted = Numbers(kCount, 1).inputs[0].bytes;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::byte* const from = devices_[rank]->memory.Shadow(placed_[rank]->call.outputs[0].data);
      if (!std::equal(wanted.begin(), wanted.end(), from)) return false;
    }
    return true;
  }
  void GoOn() { goes_on_ = true; }
  // Another call of that rank.
  Status Run(int rank) {
    Call call = placed_[rank]->call;
    call.device = on_->team->DeviceOf(rank);
    call.run_id = ++runs_;
    return on_->team->EngineOf(rank).RunOnDevice(compiled_->At(rank, 0), std::move(call));
  }
  // How often streams of callers were made to wait, on trial and for calls.
  int64_t waits() const { return devices_[0]->held_streams() + devices_[1]->held_streams(); }
  // Whether that rank's call has been handed over to the engine.
  bool IsEntered(int rank) const { return devices_[rank]->api().marks() > 0; }

  std::vector<std::unique_ptr<FakeContext>> contexts;
  std::atomic<int> over{0}, callers_back{0};   // programs, and those whose call has returned
  Status returned[kRanks];       // by a program's call, once that is over

 private:
  void RunProgram(int rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    Call call = placed_[rank]->call;
    call.device = on_->team->DeviceOf(rank);
    call.run_id = 1;
    returned[rank] = on_->team->EngineOf(rank).RunOnDevice(compiled_->At(rank, 0), std::move(call));
    ++callers_back;
    FakeStream& stream = *on_->streams[rank];
    switch (rank == 0 ? program_.early : program_.late) {
      case Behind::kNothing: break;
      case Behind::kKernels:
        for (int i = 0; i < kKernelsBehind; ++i) stream.Push([] {});
        break;
      case Behind::kGraph:
        stream.Push([this] {
          for (++in_nccl_; in_nccl_ < kRanks && !ended_;) std::this_thread::yield();
        });
        [[fallthrough]];
      case Behind::kNewKernel: contexts[rank]->Synchronise();
    }
    stream.Push([this] { ++over; });
  }

  const Program program_;
  std::vector<std::shared_ptr<FakeCudaDevice>> devices_;
  std::unique_ptr<DeviceTeam> on_;
  std::optional<Team::Program> compiled_;
  std::vector<RankArrays> arrays_;
  std::vector<std::unique_ptr<OnDevice>> placed_;
  std::vector<std::thread> callers_;
  std::atomic<int> in_nccl_{0};
  std::atomic<bool> ended_{false}, goes_on_{false};
  int64_t runs_ = 1;
};

}  // namespace jaxccomp::testing
