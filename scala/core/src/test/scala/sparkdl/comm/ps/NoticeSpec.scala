// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer

import org.scalatest.funsuite.AnyFunSuite

class NoticeSpec extends AnyFunSuite {
  private def hex(bytes: Array[Byte]): String = bytes.map(byte => f"$byte%02x").mkString

  private val head =
    "2000000000000007" + "00000001" + "00000002" + "01" + "00000003" + "0000000000000102"
  private def notice(blockBytes: Long, contents: Byte*): Notice =
    Notice(
      (1L << 61) + 7,
      1,
      2,
      Notice.Gradients,
      3,
      258,
      blockBytes,
      ByteBuffer.wrap(contents.toArray)
    )

  // Golden: executors of one build understand exactly this.
  private val golden = Seq(
    notice(1L << 33) -> (head + "0000000200000000"),
    notice(3, 5, -1, 0) -> (head + "0000000000000003" + "05ff00")
  )

  golden.foreach { case (notice, encoded) =>
    test(
      s"a notice of ${notice.blockBytes} bytes equals the golden one, and is decoded as it was sent"
    ) {
      assert(hex(notice.encode) === encoded)
      val message = ByteBuffer.allocate(encoded.length / 2 + 4)
      message.position(4).put(4, notice.encode)
      val decoded = Notice.decode(message)
      message.clear().put(new Array[Byte](message.capacity)) // as the network reuses it
      assert(decoded === Some(notice))
      assert(decoded.get.isInline === notice.contents.hasRemaining)
    }
  }

  test("other messages are not decoded as notices") {
    val right = notice(3, 5, -1, 0).encode
    val wrong = Seq(
      Array.emptyByteArray,
      right.take(36),
      right.dropRight(1),
      right :+ 0.toByte,
      right.updated(16, 2.toByte),
      notice(0).encode,
      notice(-1).encode
    )
    wrong.foreach(bytes => assert(Notice.decode(ByteBuffer.wrap(bytes)).isEmpty, hex(bytes)))
  }

  test(
    "an offer of memory equals the golden one and is decoded as it was sent; other messages are" +
      " not decoded"
  ) {
    val offer = SegmentOffer((1L << 61) + 7, 1, 2, "host", "/proc/1/fd/3")
    val encoded =
      "2000000000000007" + "00000001" + "00000002" + "02" + "00000004" + "686f7374" + "0000000c" +
        "2f70726f632f312f66642f33"
    assert(hex(offer.encode) === encoded)
    assert(SegmentOffer.decode(ByteBuffer.wrap(offer.encode)) === Some(offer))
    assert(Notice.decode(ByteBuffer.wrap(offer.encode)).isEmpty)
    val wrong =
      Seq(offer.encode.dropRight(1), offer.encode :+ 0.toByte, offer.encode.updated(16, 1.toByte))
    (wrong :+ notice(3, 5, -1, 0).encode).foreach { bytes =>
      assert(SegmentOffer.decode(ByteBuffer.wrap(bytes)).isEmpty, hex(bytes))
    }
  }

  test("contributions and failures are decoded as they were sent; other messages are not decoded") {
    val contribution = Contribution((1L << 61) + 7, 1, 2, 258, Array[Byte](5, -1))
    assert(
      hex(
        contribution.encode
      ) === "2000000000000007" + "00000001" + "00000002" + "03" + "0000000000000102" + "05ff"
    )
    val decoded = Contribution.decode(ByteBuffer.wrap(contribution.encode)).get
    assert(decoded.part === contribution.part)
    assert(decoded.copy(part = contribution.part) === contribution)
    val failure = PeerFailed((1L << 61) + 7, 1, 2, "lost")
    assert(hex(failure.encode) === "2000000000000007" + "00000001" + "00000002" + "04" + "6c6f7374")
    assert(PeerFailed.decode(ByteBuffer.wrap(failure.encode)) === Some(failure))
    val others =
      Seq(
        notice(3, 5, -1, 0).encode,
        contribution.encode.take(24),
        contribution.encode.updated(16, 5.toByte)
      )
    (others :+ failure.encode).foreach(bytes =>
      assert(Contribution.decode(ByteBuffer.wrap(bytes)).isEmpty, hex(bytes))
    )
    (others :+ contribution.encode).foreach(bytes =>
      assert(PeerFailed.decode(ByteBuffer.wrap(bytes)).isEmpty, hex(bytes))
    )
    Seq(contribution.encode, failure.encode).foreach { bytes =>
      assert(Notice.decode(ByteBuffer.wrap(bytes)).isEmpty)
      assert(SegmentOffer.decode(ByteBuffer.wrap(bytes)).isEmpty)
    }
  }
}
