package sparkdl.comm.ps

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}

import scala.collection.mutable
import scala.util.Try

import org.slf4j.LoggerFactory

import sparkdl.comm.CommException

/**
 * Message in which rank `from` tells rank `to` where its memory is. It is encoded as a [[MessageHead]] and the two
 * texts, each after its length.
 *
 * @param host as [[SegmentOffer.thisHost]]
 * @param path of the open memory file of `from`'s worker
 */
private[comm] final case class SegmentOffer(job: Long, to: Int, from: Int, host: String, path: String) {
  def encode: Array[Byte] = {
    val texts = Seq(host, path).map(_.getBytes(UTF_8))
    MessageHead(job, to, from, SegmentOffer.Kind).encode(texts.map(4 + _.length).sum) { body =>
      texts.foreach(text => body.putInt(text.length).put(text))
    }
  }
}

private[comm] object SegmentOffer {
  val Kind: Byte = 2

  /** Decode a message; return None if it is not an offer. */
  def decode(message: ByteBuffer): Option[SegmentOffer] =
    MessageHead.decode(message, Set(Kind), leastBody = 0) { (head, body) =>
      for (host <- text(body); path <- text(body) if !body.hasRemaining)
        yield SegmentOffer(head.job, head.to, head.from, host, path)
    }

  private def text(body: ByteBuffer): Option[String] = Try {
    val length = body.getInt()
    require(length <= body.remaining)
    val bytes = new Array[Byte](length)
    body.get(bytes)
    new String(bytes, UTF_8)
  }.toOption

  /**
   * Identity of this host: its boot, PID namespace and network namespace. Processes with the same identity see each
   * other's memory files. One machine that emulates several hosts has several identities. None if it is unknown.
   */
  lazy val thisHost: Option[String] = Try {
    val boot = Files.readString(Path.of("/proc/sys/kernel/random/boot_id")).trim
    val spaces = Seq("pid", "net").map(space => Files.readSymbolicLink(Path.of(s"/proc/self/ns/$space")))
    (boot +: spaces).mkString(" ")
  }.toOption
}

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
private[ps] final class Neighbors(job: Long) {
  import Neighbors._

  private var layout = Option.empty[Int => SegmentMap]
  private var early = Seq.empty[SegmentOffer] // from ranks that know their peers before this one does
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
   * Map the memory of an offer. A rank offers its memory before it publishes, so all its blocks are read from memory.
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
      val segment = MappedSegment.read(offer.path, layout.bytes)
      val isTheirs = layout.isOwned(segment, job)
      if (!isTheirs) segment.close()
      if (isTheirs) Some(new Neighbor(segment, layout)) else None
    } catch {
      case e @ (_: IOException | _: CommException) =>
        log.info("The memory of rank {}, on this host, cannot be read: {}", offer.from, e.toString)
        None
    }
}

private object Neighbors {
  private val log = LoggerFactory.getLogger(classOf[Neighbors])
}
