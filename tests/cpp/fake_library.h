// A collective library between engines of one process. Like MPI it matches collectives only by their order on a
// communicator. Values are int32, and reductions are sums.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "execution/collective_library.h"

namespace jaxccomp::testing {

class FakeLibraries {
 public:
  // Requires that all callers have returned from MakeCommunicator.
  ~FakeLibraries() { CHECK_EQ(waiting_, 0); }

  // MakeCommunicator fails.
  bool refuses = false;
  // Collectives never complete.
  std::atomic<bool> stands_still{false};

  // The number of collectives that have begun, over all ranks, and of communicators.
  int64_t begun() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return begun_;
  }
  int64_t made() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(groups_.size());
  }
  bool is_frozen(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return quiesced_.contains(rank) && quiesced_[rank];
  }

 private:
  friend class FakeLibrary;
  struct Slot {
    std::vector<std::optional<LibraryCall>> calls;   // by rank
    std::vector<std::vector<int32_t>> values;
  };
  struct Group {
    std::vector<int> processes;
    int came = 0;
    std::vector<size_t> next;   // by rank: the slot of its next collective
    std::vector<Slot> slots;
  };

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Group> groups_;   // by id
  std::map<int, bool> quiesced_;
  int waiting_ = 0;
  int64_t begun_ = 0;
};

class FakeLibrary final : public CollectiveLibrary {
 public:
  FakeLibrary(std::shared_ptr<FakeLibraries> all, int process)
      : all_(std::move(all)), process_(process), random_(static_cast<uint32_t>(7 + process)) {}

  Result<Communicator> MakeCommunicator(const std::vector<int>& processes, uint64_t id) override {
    std::unique_lock<std::mutex> lock(all_->mutex_);
    FakeLibraries::Group& group = all_->groups_[id];
    group.processes = processes;
    group.next.resize(processes.size());
    ++group.came;
    ++all_->waiting_;
    all_->wake_.notify_all();
    const bool complete = all_->wake_.wait_for(lock, std::chrono::seconds(5), [&] {
      return group.came == static_cast<int>(processes.size());
    });
    CHECK(complete);
    --all_->waiting_;
    if (all_->refuses) return Status(Code::kUnavailable, "no more communicators");
    return id;
  }

  void Start(Communicator communicator, const LibraryCall& call, Completion* done) override {
    const std::lock_guard<std::mutex> lock(all_->mutex_);
    CHECK(!all_->quiesced_[process_]);
    ++all_->begun_;
    FakeLibraries::Group& group = all_->groups_[communicator];
    const auto rank = static_cast<size_t>(std::ranges::find(group.processes, process_) -
                                          group.processes.begin());
    const size_t number = group.next[rank]++;
    if (group.slots.size() <= number) group.slots.resize(number + 1);
    FakeLibraries::Slot& slot = group.slots[number];
    slot.calls.resize(group.processes.size());
    slot.values.resize(group.processes.size());
    slot.calls[rank] = call;
    const bool per_rank = Info(call.collective).input == Blocks::kPerRank;
    const auto given = static_cast<size_t>(call.count) * (per_rank ? group.processes.size() : 1);
    if (call.in != nullptr && given > 0) {
      const auto* const from = static_cast<const int32_t*>(call.in);
      slot.values[rank].assign(from, from + given);
    }
    // MPI would not detect these differences.
    for (const auto& other : slot.calls) {
      if (!other.has_value()) continue;
      CHECK(other->collective == call.collective);
      CHECK_EQ(other->count, call.count);
      CHECK_EQ(other->root, call.root);
    }
    running_.push_back({communicator, number, rank, done});
  }

  bool Poll() override {
    std::vector<Completion*> ended;
    {
      const std::lock_guard<std::mutex> lock(all_->mutex_);
      if (all_->stands_still) return false;
      std::shuffle(running_.begin(), running_.end(), random_);
      std::erase_if(running_, [&](const Running& running) {
        FakeLibraries::Slot& slot = all_->groups_[running.communicator].slots[running.number];
        if (random_() % 3 == 0 || !std::ranges::all_of(slot.calls, [](auto& c) { return c.has_value(); })) {
          return false;
        }
        Write(slot, running.rank);
        ended.push_back(running.done);
        return true;
      });
    }
    for (Completion* done : ended) done->Done(Status::Ok());
    return !ended.empty();
  }

  void Quiesce(const Status& why) override {
    {
      const std::lock_guard<std::mutex> lock(all_->mutex_);
      all_->quiesced_[process_] = true;
    }
    for (const Running& running : std::exchange(running_, {})) running.done->Done(why);
  }

 private:
  struct Running {
    Communicator communicator;
    size_t number, rank;
    Completion* done;
  };

  // Writes the result of `rank`.
  static void Write(const FakeLibraries::Slot& slot, size_t rank) {
    const LibraryCall& call = *slot.calls[rank];
    const auto count = static_cast<size_t>(call.count), ranks = slot.calls.size();
    const auto root = static_cast<size_t>(call.root);
    auto* const out = static_cast<int32_t*>(call.out);
    const auto copy = [&](size_t to, size_t from_rank, size_t from) {
      std::memcpy(out + to * count, slot.values[from_rank].data() + from * count, count * sizeof(int32_t));
    };
    const auto add_up = [&](size_t from, std::optional<size_t> end = {}) {
      for (size_t i = 0; i < count; ++i) {
        int32_t sum = 0;
        for (size_t r = 0; r < end.value_or(ranks); ++r) sum += slot.values[r][from * count + i];
        out[i] = sum;
      }
    };
    switch (call.collective) {
      case Collective::kBcast:
        if (rank != root) copy(0, root, 0);
        return;
      case Collective::kAllreduce: return add_up(0);
      case Collective::kReduce:
        if (rank == root) add_up(0);
        return;
      case Collective::kReduceScatter: return add_up(rank);
      case Collective::kScan: return add_up(0, rank + 1);
      case Collective::kExscan:
        if (rank > 0) add_up(0, rank);   // rank 0 has no result
        return;
      case Collective::kScatter: return copy(0, root, rank);
      case Collective::kAllgather:
      case Collective::kGather:
        for (size_t r = 0; r < ranks; ++r) {
          if (call.collective == Collective::kAllgather || rank == root) copy(r, r, 0);
        }
        return;
      case Collective::kAlltoall:
        for (size_t r = 0; r < ranks; ++r) copy(r, r, rank);
        return;
      default: return;
    }
  }

  const std::shared_ptr<FakeLibraries> all_;
  const int process_;
  std::minstd_rand random_;
  std::vector<Running> running_;
};

}  // namespace jaxccomp::testing
