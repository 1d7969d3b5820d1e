package sparkdl.comm.ps

import java.util.BitSet

/** Of which buckets of gradients the sums are there, from the first one on. Any number of threads may use it at once. */
private[ps] final class SummedBuckets {
  private val done = new BitSet

  // What the worker reads between layers of its backward pass: it must not have to wait for an answer then.
  @volatile private var told = 0L

  /** The sums that come next are of another version: none is there. */
  def clear(): Unit = synchronized(done.clear())

  /** @param tell told what [[SegmentMap.summed]] has now */
  def add(version: Long, bucket: Int)(tell: Long => Unit): Unit = synchronized {
    done.set(bucket)
    told = version * SegmentMap.SummedVersion + done.nextClearBit(0)
    tell(told)
  }

  /** How many there are of `version`. */
  def of(version: Long): Int = {
    val now = told
    if (now / SegmentMap.SummedVersion == version) (now % SegmentMap.SummedVersion).toInt else 0
  }
}
