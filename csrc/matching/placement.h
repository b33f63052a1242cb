// Who shares what with whom: hosts, GPUs, and their memory. Told when ranks join, and the same on all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace jaxccomp {

struct Communicator;

// Which GPU a device of a process is.
struct GpuOfDevice {
  int process = 0;
  int64_t device = 0;   // global device id
  int gpu = 0;          // from 0: the same number for all devices, of any process, that are this GPU
};

class Placement {
 public:
  // By process: a number for its host. Until told, every process has a host of its own.
  void SetHosts(std::vector<int> hosts) { host_of_process_ = std::move(hosts); }
  // A process with one device is where that is; of one with several it is not known which a
  // communicator's operations use, unless its members are devices.
  void SetGpus(const std::vector<GpuOfDevice>& gpus);
  // By process: from which others it imports memory of GPUs (device/ipc/device_ipc.h).
  void SetIpc(std::vector<std::vector<uint8_t>> imports_from) {
    imports_from_ = std::move(imports_from);
  }

  // Fills in where members are.
  void Place(Communicator* comm) const;

 private:
  std::optional<int> GpuOf(const Communicator& comm, int member) const;
  bool Imports(int process, int from) const;
  bool GpusShareMemory(const Communicator& comm) const;

  std::vector<int> host_of_process_;
  std::map<int, std::map<int64_t, int>> gpus_of_process_;   // by device
  std::vector<std::vector<uint8_t>> imports_from_;
};

}  // namespace jaxccomp
