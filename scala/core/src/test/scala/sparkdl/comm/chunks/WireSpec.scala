// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.transport.{Chunk, ChunkPeer, MessagePart, PeerMessages}

class WireSpec extends AnyFunSuite {
  private def hex(buffer: ByteBuffer): String =
    (0 until buffer.remaining).map(at => f"${buffer.get(buffer.position() + at)}%02x").mkString

  private def bytes(hex: String): ByteBuffer =
    ByteBuffer.wrap(hex.grouped(2).map(Integer.parseInt(_, 16).toByte).toArray)

  // Golden: peers of another build understand exactly this. A change must raise Wire.Version.
  test("messages are encoded byte by byte as the golden ones") {
    assert(Wire.Version === 5)
    assert(hex(
      Wire.hello(ChunkPeer("h1", 513, "e2"))
    ) === "01" + "00000005" + "00000201" + "0002" + "6831" + "6532")
    val message = Array[Byte](1, 2, 3, -1)
    val batch = Wire.batch(Seq(MessagePart(513, message, 1, 2), MessagePart(-1, Array.empty, 0, 0)))
    val (one, other) =
      ("0000000000000201" + "00000004" + "00000002" + "0203", "ffffffffffffffff" + "00000000" * 2)
    assert(hex(batch) === "02" + one + other)
    assert(hex(Wire.received(513, -2)) === "03" + "0000000000000201" + "fffffffffffffffe")
    val chunk = Chunk(1L << 61, "sparkdl_p_0_1_17", 65536, 262144)
    assert(Wire.request(chunk) === "2305843009213693952/sparkdl_p_0_1_17/65536/262144")
    assert(hex(Wire.ask(-2, Chunk(1, "b", 0, 9))) === "04" + "fffffffffffffffe" + "312f622f302f39")
    assert(Wire.partId(-2, 9) === "-2/9")
    assert(Wire.request(Chunk(-3, "b", Long.MaxValue - 1, 1)) === "-3/b/9223372036854775806/1")
  }

  test("encoded messages are decoded") {
    val hello = "01" + "00000007" + "00000201" + "0002" + "6831" + "6532"
    assert(Wire.decode(bytes(hello)) === Wire.Hello(7, ChunkPeer("h1", 513, "e2")))
    assert(Wire.decode(Wire.received(Long.MaxValue, -7)) === Wire.Received(Long.MaxValue, -7))
    val message = Array.tabulate[Byte](1000)(_.toByte)
    val parts =
      Seq(
        MessagePart(7, message, 100, 900),
        MessagePart(8, Array.empty, 0, 0),
        MessagePart(9, message, 0, 1000)
      )
    Wire.decode(Wire.batch(parts)) match {
      case Wire.Batch(decoded) =>
        assert(decoded.map(_.number) === Seq(7, 8, 9) && decoded.map(_.total) === Seq(
          1000,
          0,
          1000
        ))
        val sent = parts.map(part => ByteBuffer.wrap(part.message, part.offset, part.length))
        assert(decoded.map(part => hex(part.bytes)) === sent.map(hex))
      case other => fail(s"$other")
    }
    for (
      chunk <- Seq(
        Chunk(1L << 61, "sparkdl_p_0_1_17", 65536, 262144),
        Chunk(-3, "b", Long.MaxValue - 1, 1)
      )
    )
      assert(Wire.decode(Wire.ask(-7, chunk)) === Wire.Ask(-7, chunk))
    for (part <- Seq((1L, 1), (-7L, Int.MaxValue), (Long.MaxValue, 0)))
      assert(Wire.part(Wire.partId(part._1, part._2)) === Some(part))
  }

  test("malformed messages are refused") {
    val number = "00" * 8
    val tooLong = number + f"${PeerMessages.MaxBytes + 1}%08x" + "00000001" + "00"
    val messages =
      Seq(
        "",
        "00",
        "03",
        "0300000001",
        "05",
        "04" + number,
        "04" + "312f622f302f39",
        "01000000",
        "0100000001000000",
        "01" + number + "00",
        "01" + number + "ffff" + "61" * 9,
        "01" + number + "0002" + "61",
        "01" + number + "0100" + "61" * 256,
        "01" + number + "0001" + "61" * 257,
        "02000000",
        "02" + number + "00000001" + "00000001",
        "02" + number + "00000001" + "00000002" + "0000",
        "02" + number + "ffffffff" + "00000000",
        "02" + number + "00000001" + "ffffffff",
        "02" + tooLong
      )
    for (message <- messages)
      withClue(message.take(20))(intercept[Wire.ProtocolException](Wire.decode(bytes(message))))
    val requests =
      Seq("", "1/b/0", "1/b/0/0", "1/b/-1/1", "1/b/0/1/2", "x/b/0/1", "1//0/1", "1/../0/1") ++
        Seq("1/b/0/2147483648", "1/b/9223372036854775807/1", "1/b/99999999999999999999/1") ++
        Seq("9223372036854775808/b/0/1", " 1/b/0/1", "1/b/0/1\n")
    requests.foreach { request =>
      val asked = ByteBuffer.wrap((("\u0004" + "\u0000" * 8) + request).getBytes("UTF-8"))
      withClue(request)(intercept[Wire.ProtocolException](Wire.decode(asked)))
    }
    val ids =
      Seq("", "1", "1/", "/1", "1/-1", "1/2147483648", "9223372036854775808/1", "1/1/1", " 1/1")
    ids.foreach(id => withClue(id)(assert(Wire.part(id) === None)))
  }
}
