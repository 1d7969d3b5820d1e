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
 * Rank `from` tells rank `to` where its memory is. Its encoding is a [[MessageHead]] and the two texts, with their length
 * before them.
 *
 * @param host as [[SegmentOffer.thisHost]] says
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

  /** None if it is no offer. */
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
   * Processes of which this is the same see each other's memory files, and the same network: one machine that plays several
   * hosts counts as several. None where it is not known.
   */
  lazy val thisHost: Option[String] = Try {
    val boot = Files.readString(Path.of("/proc/sys/kernel/random/boot_id")).trim
    val spaces = Seq("pid", "net").map(space => Files.readSymbolicLink(Path.of(s"/proc/self/ns/$space")))
    (boot +: spaces).mkString(" ")
  }.toOption
}

/** The memory of another rank on this host, as its blocks lie in it. */
private[ps] final class Neighbour(segment: Segment, map: SegmentMap) {
  private val blocks = new SegmentBlocks(segment, map)

  /** Has `take` read a block of parameters, piece by piece; it has `bytes` bytes. */
  def parameters(slice: ShardSlice, version: Long, bytes: Long)(take: ByteBuffer => Unit): Unit =
    segment.access(blocks.parametersLieAt(slice, version, bytes).foreach(take))

  /** Likewise, gradients. */
  def gradients(slice: ShardSlice, bytes: Long)(take: ByteBuffer => Unit): Unit =
    segment.access(blocks.gradientsLieAt(slice, bytes).foreach(take))

  def close(): Unit = segment.close()
}

/** The other ranks on this host whose memory can be read. */
private[ps] final class Neighbours(job: Long) {
  import Neighbours._

  private var layout = Option.empty[Int => SegmentMap]
  private var early = Seq.empty[SegmentOffer] // of ranks that know their peers before this one does
  private val mapped = mutable.Map.empty[Int, Option[Neighbour]]

  /** @param layout what lies where in a rank's memory */
  def allow(layout: Int => SegmentMap): Unit = synchronized {
    this.layout = Some(layout)
    early.foreach(offered)
    early = Seq.empty
  }

  /** An offer comes before what its rank publishes, so all of that is read from memory. */
  def offered(offer: SegmentOffer): Unit = synchronized {
    if (SegmentOffer.thisHost.contains(offer.host)) layout match {
      case None => early :+= offer
      case Some(layout) => mapped.getOrElseUpdate(offer.from, map(offer, layout(offer.from)))
    }
  }

  /** None if its memory is not to be had: then its blocks come over the network. */
  def apply(rank: Int): Option[Neighbour] = synchronized(mapped.get(rank)).flatten

  def close(): Unit = synchronized {
    layout = None
    mapped.values.flatten.foreach(_.close())
    mapped.clear()
  }

  private def map(offer: SegmentOffer, layout: SegmentMap): Option[Neighbour] =
    try {
      val segment = MappedSegment.read(offer.path, layout.bytes)
      val isTheirs = layout.isOwned(segment, job)
      if (!isTheirs) segment.close()
      if (isTheirs) Some(new Neighbour(segment, layout)) else None
    } catch {
      case e @ (_: IOException | _: CommException) =>
        log.info("The memory of rank {}, on this host, is not to be had: {}", offer.from, e.toString)
        None
    }
}

private object Neighbours {
  private val log = LoggerFactory.getLogger(classOf[Neighbours])
}
