// A service in C++ whose instances find each other, and share a store with a Python
// process that uses PyTorch (read.py): the store of a round speaks TCPStore.
//
//   c++ -std=c++17 service.cpp $(pkg-config --cflags --libs rallypoint) -o service
//   ./service host0:29400 job7 2 3        # on each node: endpoint, run id, fewest, most
//
// It serves until a client sets "stop" in the store, and goes on with those who are left
// when an instance is lost.
#include <csignal>
#include <iostream>
#include <rallypoint.hpp>

using namespace std::chrono_literals;

namespace {

// Serves in one round. True: it is over for good; false: the nodes have to regroup.
bool serve(rallypoint::Member &member, const rallypoint::Outcome &place) {
    auto store = rallypoint::Store::connect(place.store_addr, place.store_port, 10s);
    store.set_timeout(5s); // it may be lost with its node, whose loss is known sooner
    const std::string mine = "requests/" + std::to_string(place.rank);
    store.add("instances", 1);
    for (;;) {
        store.add(mine, 1); // what the service is for
        if (store.check({"stop"})) {
            return true;
        }
        if (member.wait(50ms) && member.nodes_waiting() > 0) {
            return false;
        }
    }
}

} // namespace

int main(int argc, char **argv) try {
    if (argc != 5) {
        std::cerr << "usage: service ENDPOINT RUN_ID MIN MAX\n";
        return 2;
    }
    rallypoint::MemberConfig config;
    config.endpoint = argv[1];
    config.run_id = argv[2];
    config.min_nodes = std::stoi(argv[3]);
    config.max_nodes = std::stoi(argv[4]);
    rallypoint::Member member(config);
    for (;;) {
        const auto place = member.next();
        std::cout << "round " << place.round << ": rank " << place.rank << " of "
                  << place.world_size << ", store at " << place.store_addr << " "
                  << place.store_port << std::endl;
        try {
            if (serve(member, place)) {
                break;
            }
        } catch (const rallypoint::Error &e) {
            // The store was with the lost node: the news of that is on its way.
            if (e.code() != RP_ERR_CONNECTION && e.code() != RP_ERR_TIMEOUT) {
                throw;
            }
            while (member.nodes_waiting() == 0) {
                if (!member.wait(30s)) {
                    throw;
                }
            }
        }
        std::cout << "regrouping: " << member.reason() << std::endl;
    }
    member.finish();
    member.shutdown(RP_END_SUCCESS, "a client set stop");
    std::cout << "done" << std::endl;
    return 0;
} catch (const std::exception &e) {
    std::cerr << "service: " << e.what() << "\n";
    return 1;
}
