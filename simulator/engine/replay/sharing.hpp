// Max-min fair rates in exact arithmetic.
#pragma once

#include <numeric>

#include "basics.hpp"

namespace replay {

struct Resource {
    int64_t bandwidth;             // what there is to share [B/s]
    int32_t bus, instance;         // where its rate is recorded, if it is
    std::vector<int32_t> pipes{};  // those that have flows
    bool is_reached = false, is_watched = false;
    // while rates are set: what is not given away yet, and to how many flows it goes
    Wide left = 0;
    int64_t users = 0;
    bool is_full = false;
};

struct Use {
    int32_t resource;
    int64_t count;  // how many flows a flow counts for there
};

struct Path {
    int64_t unit;  // the bandwidth that work and rates are counted against [B/s]
    bool is_even;  // each flow gets at most an equal part of the unit, even if others leave theirs
    std::vector<Use> uses{};
    std::vector<int32_t> pipes{};  // those that have flows
};

// So many flows of one path with one cap, and the rate of each, as shares of the path's unit.
struct Share {
    const Path *path;
    int64_t flows, cap, rate = 0;
};

// A share of an amount, for so many.
struct Level {
    Wide amount;
    int64_t among;

    bool operator<(const Level &other) const {
        const Wide whole = amount / among, of_other = other.amount / other.among;
        if (whole != of_other) return whole < of_other;
        return (amount - whole * among) * other.among < (other.amount - of_other * other.among) * among;
    }
};

// Progressive filling: raise the rates of all flows together; a flow stops at its cap or when a resource on its path is
// used up; go on with the rest. Amounts are whole numbers of 2^-32 / scale B/s: the scale grows to keep a level whole.
class Filling {
public:
    Filling(std::vector<Resource> &resources, std::vector<Share> &shares) : resources_(resources) {
        for (Share &share : shares) {
            rising_.push_back({&share, Wide{share.cap} * finite(share.path->unit)});
            for (const Use &use : share.path->uses) {
                Resource &resource = resources_[use.resource];
                if (resource.bandwidth == ENDLESS) continue;
                if (!resource.users) used_.push_back(&resource);
                resource.left = Wide{resource.bandwidth} * FULL_RATE;
                resource.users += share.flows * use.count;
            }
        }
        while (!rising_.empty()) stop_at(next_level());
    }

private:
    struct Rising {
        Share *share;
        Wide cap;
    };

    std::vector<Resource> &resources_;
    std::vector<Rising> rising_;
    std::vector<Resource *> used_;
    Wide scale_ = 1;

    // Return the lowest level at which a flow stops, and mark the resources that are used up there.
    Wide next_level() {
        Level lowest{rising_.front().cap, 1};
        for (const Rising &rising : rising_) lowest = std::min(lowest, Level{rising.cap, 1});
        for (const Resource *used : used_)
            if (used->users) lowest = std::min(lowest, Level{used->left, used->users});
        for (Resource *used : used_) used->is_full = used->users && !(lowest < Level{used->left, used->users});
        const int64_t part = static_cast<int64_t>(lowest.amount % lowest.among);
        const int64_t factor = lowest.among / std::gcd(part, lowest.among);
        const auto grow = [factor](Wide &number) {
            if (number > (Wide{1} << 124) / factor) throw NotCovered{};
            number *= factor;
        };
        grow(scale_);
        grow(lowest.amount);
        for (Rising &rising : rising_) grow(rising.cap);
        for (Resource *used : used_) grow(used->left);
        return lowest.amount / lowest.among;
    }

    void stop_at(Wide level) {
        const auto is_full = [this](const Use &use) { return resources_[use.resource].is_full; };
        std::vector<Rising> still;
        for (const Rising &rising : rising_) {
            const Path &path = *rising.share->path;
            if (rising.cap > level && std::none_of(path.uses.begin(), path.uses.end(), is_full)) {
                still.push_back(rising);
                continue;
            }
            rising.share->rate = std::max(int64_t{1}, static_cast<int64_t>(level / (finite(path.unit) * scale_)));
            for (const Use &use : path.uses) {
                resources_[use.resource].left -= level * rising.share->flows * use.count;
                resources_[use.resource].users -= rising.share->flows * use.count;
            }
        }
        for (Resource *used : used_) used->is_full = false;
        rising_.swap(still);
    }
};

// Set the rates of all flows that are connected over resources.
inline void set_max_min_rates(std::vector<Resource> &resources, std::vector<Share> &shares) {
    if (shares.size() > 1) {
        Filling(resources, shares);
        return;
    }
    Share &alone = shares.front();  // the same in one step
    Wide rate = alone.cap, unit = finite(alone.path->unit);
    for (const Use &use : alone.path->uses)
        if (const int64_t bandwidth = resources[use.resource].bandwidth; bandwidth != ENDLESS)
            rate = std::min(rate, Wide{bandwidth} * FULL_RATE / (unit * alone.flows * use.count));
    alone.rate = std::max(int64_t{1}, static_cast<int64_t>(rate));
}

}  // namespace replay
