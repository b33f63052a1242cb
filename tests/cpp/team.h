// Ranks of a team in one process, for tests of the whole engine: either one engine with a device per rank, or an engine
// per rank with an in-memory transport.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "engine/measurements.h"
#include "engine/membership.h"
#include "hub.h"
#include "patience.h"
#include "transport/pieces.h"

namespace jaxccomp::testing {

// A hash of x.
inline uint32_t Scramble(uint32_t x) {
  x ^= x >> 15;
  x *= 0x2c1b3c6d;
  x ^= x >> 12;
  x *= 0x297a2d39;
  return x ^ (x >> 15);
}

// The result of an operation. Get never waits for ever: a missing callback ends the test, because the engine may still
// write to the test's memory.
class Pending {
 public:
  static constexpr int kPatienceSeconds = 60;

  bool IsOver() const {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->status.has_value();
  }
  Status Get() const {
    std::unique_lock<std::mutex> lock(shared_->mutex);
    for (const testing::Stopwatch watch; watch.Seconds() < kPatienceSeconds;) {
      if (shared_->wake.wait_for(lock, std::chrono::seconds(1),
                                 [&] { return shared_->status.has_value(); })) {
        return *shared_->status;
      }
    }
    std::fprintf(stderr, "an operation never ended: %s\n", shared_->what.c_str());
    std::abort();
  }

 private:
  friend class Team;
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    std::optional<Status> status;
    std::string what;
    void Set(Status s) {
      std::lock_guard<std::mutex> lock(mutex);
      CHECK(!status.has_value());  // called once
      status = std::move(s);
      wake.notify_all();
    }
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

// Reduces a list of slow cases to the middle one, unless JAXCCOMP_TEST_ALL is set (`make test-all`).
template <typename T>
std::vector<T> SomeOf(std::vector<T> all) {
  if (std::getenv("JAXCCOMP_TEST_ALL") != nullptr || all.empty()) return all;
  return {all[all.size() / 2]};
}

enum class Style { kDevices, kProcesses };
inline constexpr Style kStyles[] = {Style::kDevices, Style::kProcesses};
inline constexpr int kTeamSizes[] = {1, 2, 3, 4, 5, 7, 8, 11};

class Team {
 public:
  // `after_poll`: see Hub.
  Team(Style style, int ranks, std::function<void(int)> after_poll = {}) : ranks(ranks), style_(style) {
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    if (style == Style::kDevices) {
      engines_.push_back(std::make_unique<Engine>(0, 1));
      std::vector<std::pair<int64_t, int>> devices;
      for (int rank = 0; rank < ranks; ++rank) devices.emplace_back(DeviceOf(rank), 0);
      engines_[0]->membership().SetDevices(devices);
      return;
    }
    hub_ = std::make_shared<Hub>(ranks);
    hub_->after_poll = std::move(after_poll);
    for (int rank = 0; rank < ranks; ++rank) {
      engines_.push_back(std::make_unique<Engine>(rank, ranks));
      CHECK_OK(engines_[rank]->UseRemote(
          [&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
            return std::unique_ptr<Transport>(
                std::make_unique<HubTransport>(hub_, rank, receiver));
          }));
      CHECK_OK(engines_[rank]->membership().AddCommunicator("world", members));
    }
  }

  Engine& EngineOf(int rank) { return *engines_[style_ == Style::kDevices ? 0 : rank]; }
  Hub& hub() { return *hub_; }
  Style style() const { return style_; }
  // The device of `rank`. Device ids differ from ranks on purpose.
  int64_t DeviceOf(int rank) const { return style_ == Style::kDevices ? 70 - 3 * rank : 0; }
  // The name of `rank` in errors.
  std::string NameOf(int rank) const {
    return style_ == Style::kDevices ? "device " + std::to_string(DeviceOf(rank)) + " "
                                     : "rank " + std::to_string(rank) + " of 'world'";
  }
  void SetOption(std::string_view name, const std::string& value) {
    for (auto& engine : engines_) CHECK_OK(engine->SetOption(name, value));
  }

  // A program: its call sites, one set for all ranks of an engine, or one per rank.
  class Program {
   public:
    Program() = default;
    Program(Program&&) = default;
    Program& operator=(Program&&) = default;
    ~Program() {
      for (auto& [engine, site] : sites_) engine->Forget(*site);
    }
    CallSite& At(int rank, size_t i) { return *by_rank_[rank][i]; }
    size_t size() const { return by_rank_.empty() ? 0 : by_rank_[0].size(); }

   private:
    friend class Team;
    std::vector<std::pair<Engine*, std::unique_ptr<CallSite>>> sites_;
    std::vector<std::vector<CallSite*>> by_rank_;
  };

  // Compiles the same program for all ranks.
  Program Compile(const std::vector<OpSpec>& specs) {
    Program program;
    program.by_rank_.resize(ranks);
    if (style_ == Style::kDevices) {
      AddSites(&program, 0, specs);
      for (int rank = 1; rank < ranks; ++rank) program.by_rank_[rank] = program.by_rank_[0];
    } else {
      for (int rank = 0; rank < ranks; ++rank) AddSites(&program, rank, specs);
    }
    return program;
  }
  // Compiles a program per rank, with separate call sites.
  Program Compile(const std::function<std::vector<OpSpec>(int rank)>& specs) {
    Program program;
    program.by_rank_.resize(ranks);
    for (int rank = 0; rank < ranks; ++rank) AddSites(&program, rank, specs(rank));
    return program;
  }
  // Replaces one rank's call sites, as a second compilation there does.
  void Recompile(Program* program, int rank, const std::vector<OpSpec>& specs) {
    program->by_rank_[rank].clear();
    AddSites(program, rank, specs);
  }

  Pending Start(int rank, CallSite& site, Call call) {
    call.device = DeviceOf(rank);
    Pending pending;
    pending.shared_->what = site.spec.ToString() + " on rank " + std::to_string(rank);
    auto shared = pending.shared_;
    std::optional<Status> now = EngineOf(rank).Start(
        site, std::move(call),
        [&] { return [shared](Status status) { shared->Set(std::move(status)); }; });
    if (now.has_value()) shared->Set(std::move(*now));
    return pending;
  }
  Status Run(int rank, CallSite& site, Call call) {
    return Start(rank, site, std::move(call)).Get();
  }

  // Runs f(rank) on one thread per rank.
  void OnRanks(const std::function<void(int)>& f) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(f, rank);
    for (std::thread& thread : threads) thread.join();
  }

  int64_t NextRunId() { return ++run_id_; }

  const int ranks;

 private:
  void AddSites(Program* program, int rank, const std::vector<OpSpec>& specs) {
    // Programs must not be compiled on several threads at once.
    static std::mutex compiling;
    std::lock_guard<std::mutex> lock(compiling);
    for (OpSpec spec : specs) {
      const bool addressed = !spec.communicator.empty() || !spec.groups.empty();
      if (!addressed && style_ == Style::kProcesses) spec.communicator = "world";
      if (!addressed && style_ == Style::kDevices) {
        for (int r = 0; r < ranks; ++r) spec.groups.push_back(DeviceOf(r));
        spec.group_size = ranks;
      }
      Result<std::unique_ptr<CallSite>> site = MakeCallSite(std::move(spec));
      if (!CHECK_OK(site)) continue;
      program->by_rank_[rank].push_back(site->get());
      program->sites_.emplace_back(&EngineOf(rank), std::move(*site));
    }
    CloseProgram("");
  }

  const Style style_;
  std::shared_ptr<Hub> hub_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::atomic<int64_t> run_id_{0};
};

// An operation on int32[count] on each rank.
inline OpSpec SpecOf(Collective collective, int64_t count, int64_t root = -1) {
  OpSpec spec;
  spec.collective = collective;
  spec.root = root;
  spec.shapes = "int32[" + std::to_string(count) + "]";
  spec.where = "step.py:" + std::to_string(count);
  return spec;
}

inline bool Contains(const Status& status, const std::string& text) {
  const bool contained = status.message().find(text) != std::string::npos;
  if (!contained) CHECK_EQ(status.message(), "... " + text + " ...");
  return contained;
}

// ---- Tensors -----------------------------------------------------------------------------

// Owns exactly its bytes, so that a sanitizer detects accesses outside them.
struct Array {
  DType dtype = DType::kInt32;
  int64_t rows = 1;
  std::vector<std::byte> bytes;

  Array() = default;
  Array(DType type, int64_t row_count, int64_t row_elements, std::byte fill = std::byte{0xa5})
      : dtype(type),
        rows(row_count),
        bytes(static_cast<size_t>(row_count * row_elements * SizeBytes(type)), fill) {}
  // The vector of an empty array may have no address, like an empty tensor of XLA.
  Tensor View() {
    return {bytes.data(), dtype, rows, static_cast<int64_t>(bytes.size())};
  }
  friend bool operator==(const Array&, const Array&) = default;
};

template <typename T>
Array ArrayOf(DType dtype, const std::vector<T>& values) {
  Array array(dtype, static_cast<int64_t>(values.size()), 1);
  CopyBytes(array.bytes.data(), values.data(), static_cast<int64_t>(array.bytes.size()));
  return array;
}
inline Array Int32s(const std::vector<int32_t>& values) { return ArrayOf(DType::kInt32, values); }

template <typename T>
std::vector<T> ValuesOf(const Array& array) {
  std::vector<T> values(array.bytes.size() / sizeof(T));
  CopyBytes(values.data(), array.bytes.data(), static_cast<int64_t>(array.bytes.size()));
  return values;
}

inline Call CallOf(std::vector<Array*> inputs, std::vector<Array*> outputs, int64_t run_id) {
  Call call;
  for (Array* array : inputs) call.inputs.push_back(array->View());
  for (Array* array : outputs) call.outputs.push_back(array->View());
  call.run_id = run_id;
  return call;
}

}  // namespace jaxccomp::testing
