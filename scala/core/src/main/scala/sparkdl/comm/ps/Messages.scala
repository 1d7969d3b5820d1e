// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}

import scala.util.Try

/**
 * Beginning of every message from rank `from` to rank `to` of a job. All numbers of messages are
 * big-endian.
 *
 * @param kind of message; the kinds of a [[Notice]] say which blocks it is about
 */
private[ps] final case class MessageHead(job: Long, to: Int, from: Int, kind: Byte) {

  /** Encode a message with a body of `bodyBytes` bytes, which `put` writes. */
  def encode(bodyBytes: Int)(put: ByteBuffer => Unit): Array[Byte] = {
    val bytes = ByteBuffer.allocate(MessageHead.Bytes + bodyBytes)
    put(bytes.putLong(job).putInt(to).putInt(from).put(kind))
    bytes.array
  }
}

private[ps] object MessageHead {
  private val Bytes = 17

  /**
   * Decode a message of one of `kinds`.
   *
   * @param leastBody bytes of the shortest body.
   * @param read decodes the rest of the buffer, which is the body
   * @return None if it is another message, or `read` returns None
   */
  def decode[T](message: ByteBuffer, kinds: Set[Byte], leastBody: Int)(
      read: (MessageHead, ByteBuffer) => Option[T]
  ): Option[T] =
    if (message.remaining < Bytes + leastBody) None
    else {
      val fields = message.slice()
      val head = MessageHead(fields.getLong(), fields.getInt(), fields.getInt(), fields.get())
      if (kinds(head.kind)) read(head, fields) else None
    }
}

/**
 * Message in which rank `from` tells rank `to` that it published a block. The rank that needs the
 * bytes fetches them. It is encoded as a [[MessageHead]] and the other fields in their order.
 *
 * @param blockBytes of the block
 * @param contents the whole block if it is inline, so that nobody fetches it; empty otherwise
 */
private[comm] final case class Notice(
    job: Long,
    to: Int,
    from: Int,
    kind: Notice.Kind,
    bucket: Int,
    version: Long,
    blockBytes: Long,
    contents: ByteBuffer
) {
  def isInline: Boolean = contents.hasRemaining

  def encode: Array[Byte] =
    MessageHead(job, to, from, kind).encode(Notice.NumberBytes + contents.remaining) {
      _.putInt(bucket).putLong(version).putLong(blockBytes).put(contents.duplicate)
    }
}

private[comm] object Notice {
  type Kind = Byte

  /** Parameters of the shard that `from` serves. */
  val Parameters: Kind = 0

  /** The gradients that `from` computed for the shard that `to` serves. */
  val Gradients: Kind = 1

  /** Contents of a notice whose block must be fetched. */
  val ToFetch: ByteBuffer = ByteBuffer.allocate(0).asReadOnlyBuffer

  private val NumberBytes = 20

  /**
   * Decode a message; return None if it is not a notice. The contents are copied, as a notice may
   * come long before it is used.
   */
  def decode(message: ByteBuffer): Option[Notice] =
    MessageHead.decode(message, Set(Parameters, Gradients), NumberBytes) { (head, body) =>
      val (bucket, version, blockBytes) = (body.getInt(), body.getLong(), body.getLong())
      lazy val contents = ByteBuffer.allocate(body.remaining).put(body).flip()
      if (blockBytes > 0 && (!body.hasRemaining || body.remaining == blockBytes))
        Some(Notice(head.job, head.to, head.from, head.kind, bucket, version, blockBytes, contents))
      else None
    }
}

/**
 * Message in which rank `from` gives rank `to` its part of a [[Gathering]]. It is encoded as a
 * [[MessageHead]], round and part.
 *
 * @param round number of the round
 */
private[comm] final case class Contribution(
    job: Long,
    to: Int,
    from: Int,
    round: Long,
    part: Array[Byte]
) {
  def encode: Array[Byte] =
    MessageHead(job, to, from, Contribution.Kind).encode(Contribution.NumberBytes + part.length)(
      _.putLong(round).put(part)
    )
}

private[comm] object Contribution {
  val Kind: Byte = 3
  private val NumberBytes = 8

  /** Decode a message; return None if it is not a contribution. */
  def decode(message: ByteBuffer): Option[Contribution] =
    MessageHead.decode(message, Set(Kind), NumberBytes) { (head, body) =>
      val round = body.getLong()
      val part = new Array[Byte](body.remaining)
      body.get(part)
      Some(Contribution(head.job, head.to, head.from, round, part))
    }
}

/**
 * Message in which rank `from` tells rank `to` that it failed. Then no rank waits for it. It is
 * encoded as a [[MessageHead]] and the reason.
 */
private[comm] final case class PeerFailed(job: Long, to: Int, from: Int, reason: String) {
  def encode: Array[Byte] = {
    val text = reason.take(PeerFailed.MostCharacters).getBytes(UTF_8)
    MessageHead(job, to, from, PeerFailed.Kind).encode(text.length)(_.put(text))
  }
}

private[comm] object PeerFailed {
  val Kind: Byte = 4
  private val MostCharacters = 2000

  /** Decode a message; return None if it reports no failure. */
  def decode(message: ByteBuffer): Option[PeerFailed] =
    MessageHead.decode(message, Set(Kind), leastBody = 0) { (head, body) =>
      Some(PeerFailed(head.job, head.to, head.from, UTF_8.decode(body).toString))
    }
}

/**
 * Message in which rank `from` tells rank `to` where its memory is. It is encoded as a
 * [[MessageHead]] and the two texts, each after its length.
 *
 * @param host as [[SegmentOffer.thisHost]]
 * @param path of the open memory file of `from`'s worker
 */
private[comm] final case class SegmentOffer(
    job: Long,
    to: Int,
    from: Int,
    host: String,
    path: String
) {
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
   * Identity of this host: its boot, PID namespace and network namespace. Processes with the same
   * identity see each other's memory files. One machine that emulates several hosts has several
   * identities. None if it is unknown.
   */
  lazy val thisHost: Option[String] = Try {
    val boot = Files.readString(Path.of("/proc/sys/kernel/random/boot_id")).trim
    val spaces =
      Seq("pid", "net").map(space => Files.readSymbolicLink(Path.of(s"/proc/self/ns/$space")))
    (boot +: spaces).mkString(" ")
  }.toOption
}
