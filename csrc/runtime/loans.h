// Memory of devices that ranks of one host lend each other: a message's bytes stay where its sender
// made them, in shared memory of its device, and its receiver reads them there, from the same GPU or
// another one. What travels is a ticket (loan_ticket.h), and a word when the loan is over.
//
// Agreement. Processes offer their shared memories when they join (Offer), open those of the others of
// their host (Open), and tell each other which they could (Agree): from then on each knows to whom it
// lends, without asking. That happens before the first call, so that opening may take its time.
//
// Order. A ticket is sent when what has made the bytes is seen to be over, and a loan is given back when
// what reads them is: no stream waits for one of another process.
//
// What is lent belongs to nobody's call. The lender's operation ends when the ticket is sent; the block is
// used again when all its loans are back, never before. A loan to a process that is lost never comes
// back: its block is given up, since it cannot be known whether it is still read. So loans take no
// more memory than was set aside for them; what finds no room there travels as it would without loans.
//
// Who gets a ticket that it has no use for, such as a rank whose tensors lie in the host's memory, refuses
// it. The lender then sends the bytes, and lends that receiver nothing there again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "runtime/loan_ticket.h"
#include "runtime/shared_arena.h"
#include "runtime/shared_code.h"
#include "transport/transport.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class Loans {
 public:
  Loans(int process, SharedArenas* arenas) : process_(process), arenas_(*arenas) {}
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  // Messages of at least so many bytes are lent; 0: none.
  void SetLeastBytes(int64_t bytes) { least_bytes_ = bytes; }
  int64_t least_bytes() const { return least_bytes_; }

  // What the others need to know: takes `memory_bytes` of each device the first time. Empty when
  // nothing shall be lent.
  std::string Offer(std::span<Device* const> devices, int64_t memory_bytes);
  // By process: whether all of this one's devices reach all shared memory of that one, which has the
  // same least_bytes. Why not goes to `reasons`.
  std::vector<uint8_t> Open(std::span<const std::string> offers, std::vector<std::string>* reasons);
  // What each process has returned from Open.
  void Agree(std::span<const std::vector<uint8_t>> opened);
  bool LendsTo(int process) const {
    return static_cast<size_t>(process) < lends_to_.size() && lends_to_[process] != 0;
  }

  // Whose shared memory tickets name so; null for none.
  Device* DeviceOf(int32_t memory) const {
    const auto& all = arenas_.all();
    return static_cast<size_t>(memory) < all.size() ? all[memory]->device : nullptr;
  }

  // Lending.
  struct Lent {
    std::shared_ptr<SharedArena::Block> block;
    int borrower = -1;   // its process
    Header header;       // of the message that the ticket stands for
    LoanTicket ticket;   // pieces count from where the arena begins
  };
  const Lent& Lend(const SharedCode& code, int borrower, const Header& header);
  // The loan is over; nothing for one that is not that process's.
  std::optional<Lent> TakeBack(uint64_t number, int borrower);
  // It stays lent to whoever is lost.
  void Lose(int process);
  void Refused(const Header& header) {
    if (refused_.size() >= kMostRefused) refused_.clear();   // they are found anew
    refused_.insert(KeyOf(header));
  }
  bool IsRefused(const Header& header) const { return refused_.contains(KeyOf(header)); }
  int64_t lent_count() const { return static_cast<int64_t>(lent_.size()); }

  // Borrowing.
  struct Borrowed {
    Header header;
    LoanTicket ticket;
  };
  // A ticket has come: its number here.
  Result<uint64_t> Accept(const Header& header, std::span<const std::byte> payload);
  const Borrowed* Find(uint64_t id) const;
  // Where the pieces count from, for that device. kDataLoss when they lie nowhere, kUnavailable when
  // the device does not reach them.
  Result<const std::byte*> Reach(Device* device, const LoanTicket& ticket) const;
  std::optional<Borrowed> Drop(uint64_t id);

  // Gives back what was imported; of `stopped` devices, nothing.
  void Forget(const std::set<Device*>& stopped);

 private:
  static constexpr size_t kMostRefused = 4096;
  using RefusedKey = std::pair<uint64_t, std::pair<uint64_t, int32_t>>;
  static RefusedKey KeyOf(const Header& header) {
    return {header.communicator, {header.site, header.destination}};
  }
  Status OpenOne(const std::string& offer, int process);

  const int process_;
  SharedArenas& arenas_;   // tickets say which
  int64_t least_bytes_ = 0;
  std::vector<Device*> devices_;                       // all that were offered for
  std::map<std::pair<Device*, int>, std::vector<Device::Imported>> imported_;   // by lender
  std::vector<uint8_t> lends_to_;
  std::set<RefusedKey> refused_;
  std::map<uint64_t, Lent> lent_;
  std::map<uint64_t, Borrowed> borrowed_;
  uint64_t next_ = 1;
};

}  // namespace jaxccomp
