// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import sparkdl.comm.ibatch.{DirectionProfile, RecentSteps}

/**
 * Data that an operation waited for. A bucket is the parameters, or the gradients, of layers that
 * travel together.
 *
 * @param bytes that other executors sent for it.
 * @param buckets times of the blocks of each bucket
 * @param aggregateSeconds wait for a sum after the last byte arrived
 * @param sum time in which the gradients were added up
 */
private[comm] final case class Transfer(
    bytes: Long,
    buckets: Seq[Seq[BlockTimes]],
    aggregateSeconds: Double = 0,
    sum: Option[Span] = None
)

/**
 * Times when a block of rank `from` was requested, and when its first and its last byte arrived.
 * They are nanoseconds of System.nanoTime, which is the clock of Python's time.perf_counter. Nobody
 * requests an inline block, so its `requested` is its `firstByte`.
 *
 * @param bytes of the block
 */
private[comm] final case class BlockTimes(
    from: Int,
    requested: Long,
    firstByte: Long,
    lastByte: Long,
    bytes: Long
)

/** Begin and end of an action, in nanoseconds of System.nanoTime. */
private[comm] final case class Span(begun: Long, ended: Long)

/**
 * Measurements of transfers in the last `steps` steps.
 *
 * Buckets overlap: one is requested while the bucket before it still arrives. So the transfer time
 * of a step is the time in which any bytes arrived. Only a bucket that found the network idle shows
 * the start-up. The gap between start-ups is at most the time between the first bytes of two blocks
 * of one server, so the least such time counts.
 */
private[ps] final class NetworkTimes(steps: Int) {
  import NetworkTimes._

  private val startups, perByte, gaps, sums = new RecentSteps[Double](steps)
  private var buckets = Vector.empty[Seq[BlockTimes]]
  private var summing = 0.0

  /**
   * Add buckets that have arrived. Inline blocks, which nobody requests, do not show what a fetch
   * takes. So all blocks are fetched in the steps before the first plan: see [[PsSession.open]].
   *
   * @param ends true if they are the last ones of a step
   */
  def add(transfer: Transfer, ends: Boolean): Unit = {
    transfer.sum.foreach(span => summing += (span.ended - span.begun) / 1e9)
    buckets ++= transfer.buckets.map(_.filter(block => block.firstByte > block.requested)).filter(
      _.nonEmpty
    )
    if (ends) end()
  }

  private def end(): Unit = {
    sums.add(summing)
    summing = 0
    val blocks = buckets.flatten
    if (blocks.nonEmpty) {
      RecentSteps.median(idleStartups(buckets)).foreach(startups.add)
      leastGap(blocks).foreach(gaps.add)
      perByte.add(union(blocks) / blocks.map(_.bytes).sum)
    }
    buckets = Vector.empty
  }

  /**
   * Return the profile of this direction; None if nothing was fetched.
   *
   * @param compute seconds of each layer
   * @param update seconds per step
   */
  def profile(compute: IndexedSeq[Double], update: Double): Option[DirectionProfile] =
    for {
      startup <- RecentSteps.median(startups.values)
      perByte <- RecentSteps.median(perByte.values)
    } yield {
      val gap = RecentSteps.median(gaps.values).map(math.min(startup, _))
      DirectionProfile(
        compute,
        startup,
        perByte,
        gap,
        RecentSteps.median(sums.values).getOrElse(0.0),
        update
      )
    }
}

private object NetworkTimes {
  private def idleStartups(buckets: Seq[Seq[BlockTimes]]): Seq[Double] = {
    var idleFrom = Long.MinValue
    buckets.flatMap { blocks =>
      val first = blocks.minBy(_.firstByte)
      val found =
        if (first.requested >= idleFrom) Some((first.firstByte - first.requested) / 1e9) else None
      idleFrom = math.max(idleFrom, blocks.map(_.lastByte).max)
      found
    }
  }

  /**
   * Return the least time between the first bytes of two blocks of one server. The second must be
   * requested before the first begins.
   */
  private def leastGap(blocks: Seq[BlockTimes]): Option[Double] = {
    val gaps = for {
      ofOne <- blocks.groupBy(_.from).values.map(_.sortBy(_.firstByte))
      (first, later) <- ofOne.zip(ofOne.drop(1))
      if later.requested <= first.firstByte
    } yield (later.firstByte - first.firstByte) / 1e9
    gaps.reduceOption(_ min _)
  }

  /** Return the seconds in which at least one block was arriving. */
  private def union(blocks: Seq[BlockTimes]): Double = {
    var (total, end) = (0L, Long.MinValue)
    blocks.sortBy(_.firstByte).foreach { block =>
      total += math.max(0, block.lastByte - math.max(block.firstByte, end))
      end = math.max(end, block.lastByte)
    }
    total / 1e9
  }
}
