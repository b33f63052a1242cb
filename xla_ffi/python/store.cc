#include "python/store.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "python/check.h"
#include "transport/store/store_transport.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

std::shared_ptr<Mailbox> UseStore() {
  auto mailbox = std::make_shared<Mailbox>();
  Engine& engine = Engine::Get();
  const int process = engine.process(), processes = engine.processes();
  Check(engine.UseRemote([&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
    return std::unique_ptr<Transport>(std::make_unique<StoreTransport>(
        process, processes, mailbox, receiver));
  }));
  return mailbox;
}

// (process, message), or None at the end.
py::object Take(Mailbox& mailbox) {
  std::optional<Mailbox::StoredMessage> message;
  {
    py::gil_scoped_release others_run;
    message = mailbox.Take();
  }
  if (!message.has_value()) return py::none();
  return py::make_tuple(message->process, py::bytes(message->text));
}

}  // namespace

void DefineStore(py::module_& m) {
  py::class_<Mailbox, std::shared_ptr<Mailbox>> mailbox(m, "Mailbox");
  mailbox.attr("PARTING") = Mailbox::kParting;
  mailbox.def("take", &Take);
  mailbox.def("deliver", [](Mailbox& self, const py::bytes& message) { self.Deliver(message); });
  mailbox.def("fail", [](Mailbox& self, const std::string& why) {
    self.Fail({Code::kUnavailable, why});
  });
  mailbox.def("end_parting", &Mailbox::EndParting);
  m.def("use_store", &UseStore);
}

}  // namespace jaxccomp
