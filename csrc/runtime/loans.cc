#include "runtime/loans.h"

#include <algorithm>
#include <cstring>

#include "common/crc32c.h"

namespace jaxccomp {
namespace {

constexpr uint64_t kMagic = 0x315246464f4c4a;   // "JLOFFR1"
constexpr uint64_t kMostMemories = 64;

struct OfferHead {
  uint64_t magic = kMagic;
  uint64_t checksum = 0;   // of all behind it
  int64_t least_bytes = 0;
  uint64_t count = 0;      // of shared memories: the length of each handle (uint64), and the handle
};

struct OfferRead {
  int64_t least_bytes = 0;
  std::vector<std::string> handles;
};

Result<OfferRead> ReadOffer(std::string_view bytes) {
  const Status broken(Code::kDataLoss, "bytes arrived that are no offer of shared memory");
  OfferHead head;
  if (bytes.size() < sizeof(head)) return broken;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const auto checked = std::as_bytes(std::span(bytes)).subspan(offsetof(OfferHead, least_bytes));
  if (head.magic != kMagic || head.checksum != Crc32c(checked) || head.count > kMostMemories) {
    return broken;
  }
  OfferRead offer{head.least_bytes, {}};
  std::string_view rest = bytes.substr(sizeof(head));
  for (uint64_t i = 0; i < head.count; ++i) {
    uint64_t length = 0;
    if (rest.size() < sizeof(length)) return broken;
    std::memcpy(&length, rest.data(), sizeof(length));
    rest.remove_prefix(sizeof(length));
    if (length > rest.size()) return broken;
    offer.handles.emplace_back(rest.substr(0, static_cast<size_t>(length)));
    rest.remove_prefix(static_cast<size_t>(length));
  }
  if (!rest.empty()) return broken;
  return offer;
}

void Append(std::string* to, const void* from, size_t bytes) {
  to->append(static_cast<const char*>(from), bytes);
}

}  // namespace

// ---- Agreement ---------------------------------------------------------------------------

std::string Loans::Offer(std::span<Device* const> devices, int64_t memory_bytes) {
  if (least_bytes_ <= 0 || devices.empty()) return {};
  OfferHead head{.least_bytes = least_bytes_};
  std::string handles;
  for (Device* device : devices) {
    if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
      devices_.push_back(device);
      // Who has none to lend may borrow all the same.
      arenas_.Provide(device, memory_bytes);
    }
  }
  for (const auto& arena : arenas_.all()) {
    const Result<std::string> handle = arena->device->Export(arena->base);
    // All or none: tickets count them.
    if (!handle.ok()) return {};
    const uint64_t length = handle->size();
    Append(&handles, &length, sizeof(length));
    handles += *handle;
    ++head.count;
  }
  std::string offer;
  Append(&offer, &head, sizeof(head));
  offer += handles;
  head.checksum = Crc32c(std::as_bytes(std::span(offer)).subspan(offsetof(OfferHead, least_bytes)));
  std::memcpy(offer.data(), &head, sizeof(head));
  return offer;
}

Status Loans::OpenOne(const std::string& bytes, int process) {
  if (bytes.empty()) return {Code::kUnavailable, "it lends nothing"};
  const Result<OfferRead> offer = ReadOffer(bytes);
  if (!offer.ok()) return offer.status();
  if (offer->least_bytes != least_bytes_) {
    return {Code::kFailedPrecondition,
            "its option device_ipc_bytes is " + std::to_string(offer->least_bytes) + ", and here " +
                std::to_string(least_bytes_) + ": set it to the same on all ranks"};
  }
  for (Device* device : devices_) {
    std::vector<Device::Imported> all;
    Status status;
    for (const std::string& handle : offer->handles) {
      const Result<Device::Imported> one = device->Import(handle);
      status = one.status();
      if (!status.ok()) break;
      all.push_back(*one);
    }
    auto& known = imported_[{device, process}];
    if (status.ok()) std::swap(known, all);
    for (const Device::Imported& one : all) device->Release(one.memory);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

std::vector<uint8_t> Loans::Open(std::span<const std::string> offers,
                                 std::vector<std::string>* reasons) {
  std::vector<uint8_t> opened;
  for (const std::string& offer : offers) {
    const Status status =
        least_bytes_ <= 0 || devices_.empty()
            ? Status(Code::kUnavailable, "this process borrows nothing")
            : OpenOne(offer, static_cast<int>(opened.size()));
    opened.push_back(status.ok());
    if (reasons != nullptr) reasons->push_back(status.message());
  }
  return opened;
}

void Loans::Agree(std::span<const std::vector<uint8_t>> opened) {
  lends_to_.assign(opened.size(), 0);
  for (size_t process = 0; process < opened.size(); ++process) {
    const auto& row = opened[process];
    lends_to_[process] = static_cast<size_t>(process_) < row.size() && row[process_] != 0;
  }
}

// ---- Lending -----------------------------------------------------------------------------

const Loans::Lent& Loans::Lend(const SharedCode& code, int borrower, const Header& header) {
  Lent lent{code.block, borrower, header, {}};
  LoanTicket& ticket = lent.ticket;
  ticket.number = next_++;
  ticket.lender = process_;
  ticket.packed = code.packed;
  ticket.referenced = code.referenced;
  ticket.pieces = code.pieces;
  for (size_t i = 0; i < arenas_.all().size(); ++i) {
    const SharedArena& arena = *arenas_.all()[i];
    if (code.memory < arena.base || code.memory >= arena.base + arena.bytes) continue;
    ticket.memory = static_cast<int32_t>(i);
    for (LoanPiece& piece : ticket.pieces) piece.offset += code.memory - arena.base;
  }
  ticket.payload_bytes = PayloadBytes(ticket.pieces, ticket.packed, ticket.referenced);
  lent.header.payload_bytes = ticket.payload_bytes;
  const uint64_t number = ticket.number;
  return lent_.emplace(number, std::move(lent)).first->second;
}

std::optional<Loans::Lent> Loans::TakeBack(uint64_t number, int borrower) {
  const auto found = lent_.find(number);
  if (found == lent_.end() || found->second.borrower != borrower) return std::nullopt;
  Lent lent = std::move(found->second);
  lent_.erase(found);
  return lent;
}

void Loans::Lose(int process) {
  if (process < 0) std::fill(lends_to_.begin(), lends_to_.end(), uint8_t{0});
  else if (static_cast<size_t>(process) < lends_to_.size()) lends_to_[process] = 0;
}

// ---- Borrowing ---------------------------------------------------------------------------

Result<uint64_t> Loans::Accept(const Header& header, std::span<const std::byte> payload) {
  Result<LoanTicket> ticket = ReadTicket(payload);
  if (!ticket.ok()) return ticket.status();
  if (ticket->lender != header.source_process) {
    return Status(Code::kDataLoss, "a ticket arrived that is not of its sender");
  }
  Borrowed borrowed{header, std::move(*ticket)};
  borrowed.header.type = MessageType::kData;
  borrowed.header.payload_bytes = borrowed.ticket.payload_bytes;
  const uint64_t id = next_++;
  borrowed_.emplace(id, std::move(borrowed));
  return id;
}

const Loans::Borrowed* Loans::Find(uint64_t id) const {
  const auto found = borrowed_.find(id);
  return found == borrowed_.end() ? nullptr : &found->second;
}

Result<const std::byte*> Loans::Reach(Device* device, const LoanTicket& ticket) const {
  const auto found = imported_.find({device, ticket.lender});
  if (found == imported_.end()) {
    return Status(Code::kUnavailable, std::string(device->name()) +
                                          " does not reach the shared memory of process " +
                                          std::to_string(ticket.lender));
  }
  const auto& memories = found->second;
  const Status outside(Code::kDataLoss, "a ticket arrived for memory that is not shared");
  if (ticket.memory < 0 || ticket.memory >= std::ssize(memories)) return outside;
  const Device::Imported& from = memories[ticket.memory];
  for (const LoanPiece& piece : ticket.pieces) {
    if (piece.bytes > from.bytes || piece.offset > from.bytes - piece.bytes) return outside;
  }
  return from.memory;
}

std::optional<Loans::Borrowed> Loans::Drop(uint64_t id) {
  const auto found = borrowed_.find(id);
  if (found == borrowed_.end()) return std::nullopt;
  Borrowed borrowed = std::move(found->second);
  borrowed_.erase(found);
  return borrowed;
}

void Loans::Forget(const std::set<Device*>& stopped) {
  lent_.clear();
  lends_to_.clear();
  for (const auto& [from, all] : imported_) {
    if (stopped.contains(from.first)) continue;
    for (const Device::Imported& one : all) from.first->Release(one.memory);
  }
  imported_.clear();
}

}  // namespace jaxccomp
