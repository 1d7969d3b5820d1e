// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.io.IOException
import java.nio.ByteBuffer

import scala.collection.mutable

import org.apache.spark.internal.Logging

import sparkdl.comm.CommException

/** Memory of another rank on this host, and the blocks in it. */
private[ps] final class Neighbor(segment: Segment, map: SegmentMap) {
  private val blocks = new SegmentBlocks(segment, map)

  /** Pass the `bytes` bytes of a block of parameters to `take`, piece by piece. */
  def parameters(slice: ShardSlice, version: Long, bytes: Long)(take: ByteBuffer => Unit): Unit =
    segment.access(blocks.findParameters(slice, version, bytes).foreach(take))

  /** Pass the `bytes` bytes of a block of gradients to `take`, piece by piece. */
  def gradients(slice: ShardSlice, bytes: Long)(take: ByteBuffer => Unit): Unit =
    segment.access(blocks.findGradients(slice, bytes).foreach(take))

  def close(): Unit = segment.close()
}

/** Other ranks on this host whose memory can be read. */
private[ps] final class Neighbors(job: Long) extends Logging {
  private var layout = Option.empty[Int => SegmentMap]
  // from ranks that know their peers before this one does
  private var early = Seq.empty[SegmentOffer]
  private val mapped = mutable.Map.empty[Int, Option[Neighbor]]

  /**
   * Begin to map the memory that ranks offer.
   *
   * @param layout map of a rank's memory
   */
  def allow(layout: Int => SegmentMap): Unit = synchronized {
    this.layout = Some(layout)
    early.foreach(onOffer)
    early = Seq.empty
  }

  /**
   * Map the memory of an offer. A rank offers its memory before it publishes, so all its blocks are
   * read from memory.
   */
  def onOffer(offer: SegmentOffer): Unit = synchronized {
    if (SegmentOffer.thisHost.contains(offer.host)) layout match {
      case None => early :+= offer
      case Some(layout) => mapped.getOrElseUpdate(offer.from, map(offer, layout(offer.from)))
    }
  }

  /** Return a rank's memory. None if it cannot be read; then its blocks come over the network. */
  def apply(rank: Int): Option[Neighbor] = synchronized(mapped.get(rank)).flatten

  def close(): Unit = synchronized {
    layout = None
    mapped.values.flatten.foreach(_.close())
    mapped.clear()
  }

  private def map(offer: SegmentOffer, layout: SegmentMap): Option[Neighbor] =
    try {
      val segment = Segment.read(offer.path, layout.bytes)
      val isTheirs = layout.isOwned(segment, job)
      if (!isTheirs) segment.close()
      if (isTheirs) Some(new Neighbor(segment, layout)) else None
    } catch {
      case e @ (_: IOException | _: CommException) =>
        logInfo(s"The memory of rank ${offer.from}, on this host, cannot be read: $e")
        None
    }
}
