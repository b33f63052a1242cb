// Collectives of ranks whose tensors lie on fake devices, or some of them on the host.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "fake_stream.h"
#include "team.h"
#include "tested_device.h"

namespace jaxccomp::testing {

// One rank's tensors of one operation.
struct RankArrays {
  std::vector<Array> inputs, outputs, refs;
  bool in_place = false;   // results lie where operands do
  friend bool operator==(const RankArrays&, const RankArrays&) = default;
};

// Copies of a rank's arrays on a device, written and read by the caller's stream alone.
class OnDevice {
 public:
  OnDevice(TestedDevice* device, FakeStream* stream, RankArrays* host)
      : device_(device), stream_(stream), host_(host) {
    for (auto [arrays, tensors] : {std::pair{&host->inputs, &call.inputs},
                                   {&host->outputs, &call.outputs},
                                   {&host->refs, &call.refs}}) {
      const bool shared = host->in_place && tensors == &call.outputs;
      for (size_t i = 0; i < arrays->size(); ++i) {
        Tensor tensor = (*arrays)[i].View();
        if (shared) {
          tensor.data = call.inputs[i].data;
        } else {
          tensor.data = device->memory.Take(tensor.bytes);
          owned_.push_back(static_cast<std::byte*>(tensor.data));
        }
        tensors->push_back(tensor);
      }
    }
    call.memory = &device->device();
    call.stream = stream;
    stream_->Push([this] {
      Write(host_->inputs, call.inputs);
      Write(host_->refs, call.refs);
    });
  }
  ~OnDevice() { stream_->Finish(); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  // Once the operation has been started: the stream reads the results when it comes there.
  void ReadResults() {
    stream_->Push([this] {
      if (leaves_results_) return;
      for (size_t i = 0; i < host_->outputs.size(); ++i) {
        auto& bytes = host_->outputs[i].bytes;
        if (!bytes.empty()) {
          std::memcpy(bytes.data(), device_->memory.Shadow(call.outputs[i].data), bytes.size());
        }
      }
      for (std::byte* memory : owned_) device_->memory.GiveBack(memory);
    });
  }

  // Of a device that has stopped nobody knows when it has done with them: they are neither read nor
  // given back.
  void LeaveResults() { leaves_results_ = true; }

  Call call;

 private:
  void Write(const std::vector<Array>& from, const std::vector<Tensor>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].bytes.empty()) continue;
      std::memcpy(device_->memory.Shadow(to[i].data), from[i].bytes.data(), from[i].bytes.size());
    }
  }

  TestedDevice* const device_;
  FakeStream* const stream_;
  RankArrays* const host_;
  std::vector<std::byte*> owned_;
  std::atomic<bool> leaves_results_{false};
};

inline Call OnHost(RankArrays* arrays) {
  Call call;
  for (Array& a : arrays->inputs) call.inputs.push_back(a.View());
  for (Array& a : arrays->outputs) call.outputs.push_back(a.View());
  for (Array& a : arrays->refs) call.refs.push_back(a.View());
  if (arrays->in_place) call.inputs = call.outputs;
  return call;
}

// A team with a device (or none) and a stream by rank.
struct DeviceTeam {
  enum class Place { kHost, kDevice, kMixed };
  DeviceTeam(DeviceKind kind, Style style, int ranks, Place place, int longest_delay_us = 40)
      : kind_(kind) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto seed = static_cast<uint32_t>(rank * 7 + ranks);
      streams.push_back(std::make_unique<FakeStream>(seed, longest_delay_us));
      const bool here = place == Place::kDevice || (place == Place::kMixed && rank % 2 == 1);
      // Ranks of one engine share a device, in threes.
      const bool shares = style == Style::kDevices && rank % 3 != 0 && here && rank >= 2;
      devices.push_back(!here ? nullptr
                              : shares && devices[rank - 2] != nullptr
                                  ? devices[rank - 2]
                              : MakeDevice(kind, seed, 1 + rank % 3, longest_delay_us));
    }
    team = std::make_unique<Team>(style, ranks);
  }
  // The engines go first, then streams, devices last.
  ~DeviceTeam() {
    for (auto& stream : streams) stream->Finish();
    team.reset();
    streams.clear();
  }

  // By rank, numbers for its host and its GPU. Devices of different GPUs reach each other's memory only
  // `between_gpus`.
  void SetPlacement(const std::vector<int>& on_hosts, const std::vector<int>& gpus,
                    bool between_gpus = true) {
    hosts = on_hosts;
    const bool one = team->style() == Style::kDevices;
    std::vector<GpuOfDevice> all;
    for (int rank = 0; rank < team->ranks; ++rank) {
      all.push_back({one ? 0 : rank, team->DeviceOf(rank), gpus[rank]});
    }
    for (int i = 0; i < (one ? 1 : team->ranks); ++i) {
      if (!one) team->EngineOf(i).SetHosts(hosts);
      team->EngineOf(i).SetGpus(all);
    }
    if (!between_gpus) reach_ = gpus;
  }
  // From now on the ranks' devices export messages to each other of at least so many bytes, where they can.
  void Share(int64_t least_bytes, int64_t memory_bytes = 64 << 20) {
    team->SetOption("device_ipc_bytes", std::to_string(least_bytes));
    team->SetOption("device_ipc_memory_bytes", std::to_string(memory_bytes));
    Join([](std::vector<std::string>*) {});
  }
  // From now on messages of at least so many bytes travel from and to devices' memory, between hosts.
  // By rank, why it takes no part.
  std::vector<std::string> SendCudaAware(int64_t least_bytes, int64_t memory_bytes = 64 << 20) {
    team->SetOption("device_mpi_bytes", std::to_string(least_bytes));
    team->SetOption("device_ipc_memory_bytes", std::to_string(memory_bytes));
    team->hub().open = [this](void* address, int64_t bytes, int from, int to) {
      std::byte* const at = FakeMemory::Open(address, bytes);
      CHECK(at == address || (HasCurrent(kind_) && MayBeCudaAware(from, to)));
      return at;
    };
    return JoinCudaAware();
  }
  std::vector<std::string> JoinCudaAware(double timeout_seconds = 20) {
    const auto count = static_cast<size_t>(team->ranks);
    std::vector<std::string> why(count);
    std::vector<int> takes_part(count);
    for (int rank = 0; rank < team->ranks; ++rank) {
      std::vector<Device*> own;
      if (devices[rank] != nullptr) own.push_back(&devices[rank]->device());
      const Result<int> prepared = team->EngineOf(rank).PrepareCudaAware(own);
      why[rank] = prepared.status().message();
      takes_part[rank] = prepared.ok() ? *prepared : 0;
    }
    cuda_aware_works.assign(count, {});
    cuda_aware_reasons.assign(count, {});
    warm_status.assign(count, Status::Ok());
    team->OnRanks([&](int rank) {
      std::vector<uint8_t> partners(count);
      for (size_t i = 0; i < count; ++i) {
        partners[i] = takes_part[rank] > 0 && takes_part[i] > 0 && AreApart(rank, static_cast<int>(i));
      }
      auto warmed = team->EngineOf(rank).WarmUpCudaAware(takes_part, partners, timeout_seconds);
      warm_status[rank] = warmed.status();
      if (!warmed.ok()) return;
      cuda_aware_works[rank] = warmed->works;
      cuda_aware_reasons[rank] = warmed->reasons;
    });
    for (int rank = 0; rank < team->ranks; ++rank) team->EngineOf(rank).AgreeOnCudaAware(cuda_aware_works);
    agreed = true;
    return why;
  }
  // Whether both have found it to work; all may try.
  bool MayBeCudaAware(int from, int to) const {
    return !agreed || (cuda_aware_works[from][to] && cuda_aware_works[to][from]);
  }
  // Whether they are of different hosts.
  bool AreApart(int one, int other) const {
    return one != other && (hosts.empty() || hosts[one] != hosts[other]);
  }

  // As Share; `change` may do something to the offers on their way.
  template <typename F>
  void Join(F change) {
    const int engines = team->style() == Style::kDevices ? 1 : team->ranks;
    std::vector<std::string> offers;
    for (int i = 0; i < engines; ++i) {
      std::vector<Device*> own;
      for (int rank = 0; rank < team->ranks; ++rank) {
        if ((engines > 1 && rank != i) || devices[rank] == nullptr) continue;
        Device* const device = &devices[rank]->device();
        if (std::find(own.begin(), own.end(), device) == own.end()) own.push_back(device);
      }
      offers.push_back(team->EngineOf(i).OfferMemory(own));
    }
    change(&offers);
    std::vector<std::vector<uint8_t>> opened;
    for (int i = 0; i < engines; ++i) {
      reasons.emplace_back();
      opened.push_back(team->EngineOf(i).OpenMemory(offers, &reasons.back()));
      for (int j = 0; j < engines && !hosts.empty(); ++j) opened[i][j] &= !AreApart(i, j);
    }
    for (int i = 0; i < engines && !reach_.empty(); ++i) {
      for (int j = 0; j < engines; ++j) opened[i][j] &= reach_[i] == reach_[j];
    }
    for (int i = 0; i < engines; ++i) team->EngineOf(i).AgreeOnIpc(opened);
  }
  int64_t IpcBytes() {
    int64_t bytes = 0;
    const int engines = team->style() == Style::kDevices ? 1 : team->ranks;
    for (int i = 0; i < engines; ++i) {
      for (const CollectiveStats& stats : team->EngineOf(i).GetStats()) bytes += stats.ipc_bytes;
    }
    return bytes;
  }
  // Sent from, and received into, memory of devices.
  std::pair<int64_t, int64_t> CudaAwareBytes() {
    std::pair<int64_t, int64_t> bytes = {0, 0};
    const int engines = team->style() == Style::kDevices ? 1 : team->ranks;
    for (int i = 0; i < engines; ++i) {
      for (const CollectiveStats& stats : team->EngineOf(i).GetStats()) {
        bytes.first += stats.cuda_aware_sent_bytes;
        bytes.second += stats.cuda_aware_received_bytes;
      }
    }
    return bytes;
  }
  // When nothing is under way any more.
  void CheckAllReturned() {
    const int engines = team->style() == Style::kDevices ? 1 : team->ranks;
    for (int i = 0; i < engines; ++i) {
      for (int tries = 0; tries < 5000 && team->EngineOf(i).CountExported() > 0; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      CHECK_EQ(team->EngineOf(i).CountExported(), 0);
    }
  }

  // Started, not over; `held` keeps what the operation needs.
  Pending Start(int rank, CallSite& site, RankArrays* arrays, int64_t run_id,
                std::vector<std::unique_ptr<OnDevice>>* held) {
    Call call;
    OnDevice* placed = nullptr;
    if (devices[rank] != nullptr) {
      placed = held->emplace_back(std::make_unique<OnDevice>(devices[rank].get(),
                                                             streams[rank].get(), arrays))
                   .get();
      call = placed->call;
    } else {
      call = OnHost(arrays);
    }
    call.run_id = run_id;
    Pending pending = team->Start(rank, site, std::move(call));
    if (placed != nullptr) placed->ReadResults();
    return pending;
  }
  // Until the results are in `arrays`.
  Status Run(int rank, CallSite& site, RankArrays* arrays, int64_t run_id) {
    std::vector<std::unique_ptr<OnDevice>> held;
    const Status status = Start(rank, site, arrays, run_id, &held).Get();
    streams[rank]->Finish();
    return status;
  }

  std::vector<std::shared_ptr<TestedDevice>> devices;
  std::vector<std::unique_ptr<FakeStream>> streams;
  std::unique_ptr<Team> team;
  std::vector<std::vector<std::string>> reasons;   // of Open, by rank and process
  std::vector<int> hosts;                          // by rank; empty: each its own, or all one for device IPC
  std::vector<std::vector<uint8_t>> cuda_aware_works;
  std::vector<std::vector<std::string>> cuda_aware_reasons;
  std::vector<Status> warm_status;
  bool agreed = false;

 private:
  const DeviceKind kind_;
  std::vector<int> reach_;   // by process, where not empty: it reaches those with the same number
};

}  // namespace jaxccomp::testing
