// Ranks that use NCCL's fake (fake_nccl.cc) beside the engine, on fake devices.
#pragma once

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "common/dynamic_library.h"
#include "device_team.h"
#include "fake_nccl.h"
#include "nccl/backend.h"

namespace jaxccomp::testing {

// The fake, opened once, and what it knows of streams and memory.
class FakeNccl {
 public:
  static FakeNccl& Get() {
    static FakeNccl own;
    return own;
  }
  void Set(FakeNcclSetting setting, int64_t value) { set_(static_cast<int>(setting), value); }
  int64_t Spinning() const { return spinning_(); }
  int64_t Aborted() const { return aborted_(); }
  void Know(FakeStream* stream, int gpu, TestedDevice* device) {
    std::lock_guard lock(mutex_);
    streams_[stream] = {gpu, device};
  }
  void Forget(FakeStream* stream) {
    std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }

 private:
  struct Known {
    int gpu;
    TestedDevice* device;
  };

  FakeNccl() {
    AddLibraryPath(nccl::Library::kName, JAXCCOMP_FAKE_NCCL);
    AddLibraryPath(nccl::Driver::kName, JAXCCOMP_FAKE_NCCL);
    void* const library = dlopen(JAXCCOMP_FAKE_NCCL, RTLD_NOW);
    if (library == nullptr) std::abort();
    set_ = reinterpret_cast<FakeNcclSet>(dlsym(library, "fake_nccl_set"));
    spinning_ = reinterpret_cast<FakeNcclSpinning>(dlsym(library, "fake_nccl_spinning"));
    aborted_ = reinterpret_cast<FakeNcclCount>(dlsym(library, "fake_nccl_aborted"));
    static const FakeNcclHooks hooks = {
        [](void* stream, void (*work)(void*), void* argument) {
          static_cast<FakeStream*>(stream)->Push([=] { work(argument); });
        },
        [](const void* address) -> void* {
          FakeNccl& own = Get();
          std::lock_guard lock(own.mutex_);
          for (const auto& [stream, known] : own.streams_) {
            if (known.device != nullptr && known.device->memory.Covers(address)) {
              return known.device->memory.Shadow(address);
            }
          }
          return const_cast<void*>(address);
        },
        [](void* stream) {
          FakeNccl& own = Get();
          std::lock_guard lock(own.mutex_);
          return own.streams_.at(static_cast<FakeStream*>(stream)).gpu;
        }};
    reinterpret_cast<FakeNcclSetHooks>(dlsym(library, "fake_nccl_set_hooks"))(&hooks);
  }

  FakeNcclSet set_;
  FakeNcclSpinning spinning_;
  FakeNcclCount aborted_;
  std::mutex mutex_;
  std::map<FakeStream*, Known> streams_;
};

// A team on devices, and for each engine its NCCL. What stands in the memory of `libraries` is used in
// place of the fake's, by rank.
class NcclTeam {
 public:
  NcclTeam(Style style, int ranks, const std::map<int, const nccl::Library*>& libraries = {})
      : style(style), on(DeviceKind::kFake, style, ranks, DeviceTeam::Place::kDevice) {
    FakeNccl& fake = FakeNccl::Get();
    for (int rank = 0; rank < ranks; ++rank) {
      fake.Know(on.streams[rank].get(), rank, on.devices[rank].get());
    }
    for (int i = 0; i < (style == Style::kDevices ? 1 : ranks); ++i) {
      const auto found = libraries.find(i);
      backends_.push_back(std::make_unique<nccl::Backend>(
          &on.team->EngineOf(i),
          found == libraries.end() ? &nccl::Library::Get() : found->second,
          &nccl::Driver::Get()));
    }
  }
  ~NcclTeam() {
    // Side by side, as processes that end: each waits for the others.
    std::vector<std::thread> ends;
    for (auto& backend : backends_) ends.emplace_back([&] { backend->Shutdown(); });
    for (std::thread& end : ends) end.join();
    for (auto& stream : on.streams) {
      stream->Finish();
      FakeNccl::Get().Forget(stream.get());
    }
    backends_.clear();
  }
  nccl::Backend& BackendOf(int rank) { return *backends_[style == Style::kDevices ? 0 : rank]; }

  // One program of call sites of both kinds.
  struct Program {
    struct Each {
      std::unique_ptr<nccl::NcclCallSite> nccl;
      std::unique_ptr<CallSite> engine;
    };
    std::vector<std::shared_ptr<std::vector<Each>>> by_rank;
  };
  // `specs` of each rank, in the order in which its stream runs them.
  Program Compile(const std::vector<std::vector<OpSpec>>& specs) {
    Program program;
    for (int rank = 0; rank < on.team->ranks; ++rank) {
      if (style == Style::kDevices && rank > 0 && specs[rank].empty()) {
        program.by_rank.push_back(program.by_rank[0]);
        continue;
      }
      auto sites = std::make_shared<std::vector<Program::Each>>();
      const auto& own = specs[rank].empty() ? specs[0] : specs[rank];
      for (OpSpec spec : own) {
        const bool addressed = !spec.communicator.empty() || !spec.groups.empty();
        if (!addressed && style == Style::kProcesses) spec.communicator = "world";
        if (!addressed && style == Style::kDevices) {
          for (int r = 0; r < on.team->ranks; ++r) spec.groups.push_back(on.team->DeviceOf(r));
          spec.group_size = on.team->ranks;
        }
        Program::Each each;
        if (spec.nccl) {
          auto made = nccl::NcclCallSite::Make(spec);
          if (CHECK_OK(made)) each.nccl = std::move(*made);
        } else {
          auto made = MakeCallSite(spec);
          if (CHECK_OK(made)) each.engine = std::move(*made);
        }
        sites->push_back(std::move(each));
      }
      CloseProgram("");
      program.by_rank.push_back(std::move(sites));
    }
    return program;
  }
  Program Compile(const std::vector<OpSpec>& specs) {
    std::vector<std::vector<OpSpec>> all(static_cast<size_t>(on.team->ranks));
    all[0] = specs;
    return Compile(all);
  }

  // As XLA does it: all of a program join, then its operations are queued one after the other. The
  // first error; the results are there once the rank's stream has finished.
  Status Launch(int rank, const Program& program, std::vector<RankArrays>* arrays, int64_t run_id,
                std::vector<std::unique_ptr<OnDevice>>* held, std::vector<Pending>* pending) {
    FakeStream* const stream = on.streams[rank].get();
    nccl::Backend& backend = BackendOf(rank);
    auto& sites = *program.by_rank[rank];
    for (auto& site : sites) {
      if (site.nccl == nullptr) continue;
      Status status = backend.Join(*site.nccl, on.team->DeviceOf(rank), run_id, stream);
      if (!status.ok()) return status;
    }
    for (size_t i = 0; i < sites.size(); ++i) {
      if (sites[i].engine != nullptr) {
        pending->push_back(on.Start(rank, *sites[i].engine, &(*arrays)[i], run_id, held));
        continue;
      }
      auto& placed = held->emplace_back(
          std::make_unique<OnDevice>(on.devices[rank].get(), stream, &(*arrays)[i]));
      Call call = placed->call;
      call.memory = nullptr;
      call.device = on.team->DeviceOf(rank);
      call.run_id = run_id;
      Status status = backend.Run(*sites[i].nccl, call);
      placed->ReadResults();
      if (!status.ok()) return status;
    }
    return Status::Ok();
  }

  void Forget(const Program& program) {
    for (int rank = 0; rank < on.team->ranks; ++rank) {
      for (auto& each : *program.by_rank[rank]) {
        if (each.nccl != nullptr) BackendOf(rank).Forget(*each.nccl);
        if (each.engine != nullptr) on.team->EngineOf(rank).Forget(*each.engine);
      }
    }
  }

  const Style style;
  DeviceTeam on;

 private:
  std::vector<std::unique_ptr<nccl::Backend>> backends_;
};

}  // namespace jaxccomp::testing
