// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.io.{EOFException, IOException}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.{ServerSocketChannel, SocketChannel}
import java.nio.file.Files

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Golden

class FramesSpec extends AnyFunSuite {
  private def withConnection[T](sent: Array[Byte])(body: SocketChannel => T): T = {
    val directory = Files.createTempDirectory("sparkdl-test")
    val path = directory.resolve("socket")
    val server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)
    try {
      server.bind(UnixDomainSocketAddress.of(path))
      val client = SocketChannel.open(UnixDomainSocketAddress.of(path))
      val accepted = server.accept()
      client.write(ByteBuffer.wrap(sent))
      client.shutdownOutput()
      try body(accepted)
      finally {
        client.close()
        accepted.close()
      }
    } finally {
      server.close()
      Files.delete(path)
      Files.delete(directory)
    }
  }

  test("a request is decoded as Python sends it") {
    withConnection(Golden.bytes("bridge/request.bin")) { channel =>
      val request = Frames.read(channel).get
      assert(request.get("op").asText === "pull")
      assert(request.get("version").asLong === 4611686018427387904L)
      assert(request.get("layers").get(1).asLong === 32)
      assert(request.get("é").asText === "ü")
      assert(Frames.read(channel).isEmpty)
    }
  }

  test("a reply is encoded as Python expects it") {
    withConnection(Golden.bytes("bridge/reply.bin")) { channel =>
      val expected = Frames.read(channel).get
      val reply = Frames.newObject()
      reply.put("ok", false).put("op", "push").put("error", "PeerLost").put(
        "message",
        "rank 2 \u2192 gone"
      )
      reply.put("peer", 2).put("seconds", 0.25)
      assert(reply === expected)
      val frame = Frames.encode(reply)
      assert(frame.getInt(0) === frame.remaining - 4)
    }
  }

  test("a length above the limit is refused before memory is allocated") {
    withConnection(Array[Byte](127, -1, -1, -1)) { channel =>
      assert(
        intercept[IOException](Frames.read(channel)).getMessage.contains(Frames.MaxBytes.toString)
      )
    }
  }

  test("a truncated frame and a frame without an object are refused") {
    withConnection(Array[Byte](0, 0, 0, 9, '{'))(channel =>
      intercept[EOFException](Frames.read(channel))
    )
    withConnection(Array[Byte](0, 0, 0, 2, '[', ']'))(channel =>
      intercept[IOException](Frames.read(channel))
    )
  }
}
