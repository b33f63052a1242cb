#include "transport/transport_router.h"

#include <string>

namespace jaxccomp {
namespace {

// Deletes itself when it has been sent.
struct Notification final : Completion {
  std::string payload;
  void Done(Status) override { delete this; }
};

}  // namespace

bool TransportRouter::Notify(int process, Header header, std::string payload) {
  Transport* const transport = To(process);
  if (transport == nullptr) return false;
  auto* notification = new Notification;
  notification->payload = std::move(payload);
  header.payload_bytes = static_cast<int64_t>(notification->payload.size());
  const Piece piece{notification->payload.data(), header.payload_bytes};
  transport->Send(process, header, {&piece, header.payload_bytes > 0 ? size_t{1} : size_t{0}},
                  notification);
  return true;
}

}  // namespace jaxccomp
