// Who comes last of some workgroups of a dispatch, found by a counter in `ahead` that is zero before and after.
//
// Nobody waits for anybody, so nothing is asked of how workgroups are scheduled. What the others have stored is seen by the last
// one where all of them access it as coherent memory: a storage barrier, which orders memory of the device for each thread, stands
// between their stores and the counter, and between the counter and what the last one reads.

var<workgroup> is_last: u32;

// Every thread of a workgroup comes here, and all have the same answer.
fn comes_last(counter: u32, waits: u32, t: u32) -> bool {
    storageBarrier();
    if (t == 0u) {
        let is_full = atomicAdd(&ahead[counter], 1u) + 1u == waits;
        if (is_full) {
            atomicStore(&ahead[counter], 0u);
        }
        is_last = u32(is_full);
    }
    let last = workgroupUniformLoad(&is_last) == 1u;
    if (last) {
        storageBarrier();
    }
    return last;
}
