#include "transport/mpi/mpi_exchange.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace jaxccomp {
namespace {

constexpr int kTag = 2;

// What is sent to or received from one process.
class Direction {
 public:
  Direction(const MpiWorld& world, bool receives, int process)
      : world_(world), receives_(receives), process_(process) {}

  void Start(std::span<const Piece> pieces) {
    if (process_ < 0) return;
    // In the units in which payloads go.
    const int64_t most_bytes = world_.UnitBytes(process_);
    for (const Piece& piece : pieces) {
      for (int64_t begin = 0; begin < piece.bytes; begin += most_bytes) {
        auto* const data = static_cast<std::byte*>(piece.data) + begin;
        StartUnit(data, static_cast<int>(std::min(most_bytes, piece.bytes - begin)));
        if (!status_.ok()) return;
      }
    }
  }
  void Test() {
    std::erase_if(requests_, [&](MpiHandle& request) {
      int completed = 0;
      const int error = world_.mpi->Test(&request, &completed);
      if (error != 0) Fail("MPI_Test", error);
      return error != 0 || completed != 0;
    });
  }
  bool open() const { return !requests_.empty(); }
  Status End() {
    if (!open()) return std::move(status_);
    return {Code::kDeadlineExceeded, std::string("messages ") + (receives_ ? "from" : "to") +
                                         " process " + std::to_string(process_) +
                                         " did not get through in time"};
  }

 private:
  void StartUnit(std::byte* data, int bytes) {
    const MpiConfig& config = world_.config;
    MpiHandle request = 0;
    const int error = receives_ ? world_.mpi->Irecv(data, bytes, config.byte_type, process_, kTag,
                                                    config.comm, &request)
                                : world_.mpi->Isend(data, bytes, config.byte_type, process_, kTag,
                                                    config.comm, &request);
    if (error != 0) return Fail(receives_ ? "MPI_Irecv" : "MPI_Isend", error);
    requests_.push_back(request);
  }
  void Fail(const char* call, int error) {
    if (status_.ok()) status_ = world_.Error(call, process_, error);
  }

  const MpiWorld& world_;
  const bool receives_;
  const int process_;
  std::vector<MpiHandle> requests_;
  Status status_;
};

}  // namespace

Transport::Exchanged ExchangeByMpi(const MpiWorld& world, int to, std::span<const Piece> sent,
                                   int from, std::span<const Piece> received,
                                   MpiWorld::Clock::time_point deadline) {
  Direction receives(world, /*receives=*/true, from), sends(world, /*receives=*/false, to);
  receives.Start(received);
  sends.Start(sent);
  while (receives.open() || sends.open()) {
    receives.Test();
    sends.Test();
    if (MpiWorld::Clock::now() > deadline) break;
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
  return {.sent = sends.End(), .received = receives.End()};
}

}  // namespace jaxccomp
